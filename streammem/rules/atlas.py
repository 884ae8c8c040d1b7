from streammem.memory.algorithm import MuonMomentum
from streammem.memory.architecture import MLP, Architecture
from streammem.memory.bias import L2
from streammem.memory.features import Features
from streammem.memory.lifted import windowed
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed, Rule


def atlas(
    memory: Architecture = MLP(),
    frames: int = 4,
    tokens: int = 1,
    features: Features | None = None,
    chunk: int = 1,
) -> Rule:
    """Atlas: momentum on the l2 bias of the last frames together, each step orthogonalised, the old memory decayed.

        S_t = m_t S_{t-1} - sum over the last `frames` frames of sum_i lr_i grad 0.5 |f(phi(k_i); M_{t-1}) - v_i|^2
        M_t = a_t M_{t-1} + mean(lr) NS5(S_t)

    MLP memory, l2 bias over a window, decay, Muon with momentum. With SwiGLU("gelu") it is Atlas++.

    frames, tokens, features, chunk: as in omega.

    Shapes: weights as the memory has them, over features of the keys; the window holds (frames - 1) N tokens. No chunk
    form: each momentum is orthogonalised alone.
    Units: none; a step has singular values near mean(lr), whatever the surprise: the rate has to carry it.
    Source: Behrouz et al. 2025, arXiv:2505.23735.
    Differs: one rate for the weight of a token and the length of the step; the paper has two. Else as in omega.
    """
    return windowed(Composed(memory, L2(), Decay(), MuonMomentum()), frames, tokens, features, chunk)
