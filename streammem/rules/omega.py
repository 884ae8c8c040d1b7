from streammem.memory.algorithm import Descent
from streammem.memory.architecture import MLP, Architecture
from streammem.memory.bias import L2
from streammem.memory.features import Features
from streammem.memory.lifted import windowed
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed, Rule


def omega(
    memory: Architecture = MLP(),
    frames: int = 4,
    tokens: int = 1,
    features: Features | None = None,
    chunk: int = 1,
) -> Rule:
    """OmegaNet: descent on the l2 bias of the last frames together, the old memory decayed.

        M_t = a_t M_{t-1} - sum over the last `frames` frames of sum_i lr_i grad 0.5 |f(phi(k_i); M_{t-1}) - v_i|^2

    MLP memory, l2 bias over a window, decay, descent.

    frames: length of the window, this frame included. tokens: N of every frame. features: phi, over which the memory
    is; None takes keys as they are. chunk: as in titans; the window and the chunk are different things.

    Shapes: weights as the memory has them, over features of the keys; the window holds (frames - 1) N tokens. No chunk
    form: the window goes step by step.
    Source: Behrouz et al. 2025, arXiv:2505.23735.
    Differs: a token keeps its rate while it is in the window, where the paper has a gate for each pair; the loss has a
    factor 0.5. The paper prints a minus before the value term of the linear memory; descent gives a plus.
    """
    return windowed(Composed(memory, L2(), Decay(), Descent()), frames, tokens, features, chunk)
