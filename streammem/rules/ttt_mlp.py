from streammem.memory.algorithm import Descent
from streammem.memory.architecture import Architecture, BiasedMLP, Residual
from streammem.memory.bias import L2
from streammem.memory.chunked import frozen_gradient
from streammem.memory.retention import Keep
from streammem.memory.rule import Composed, Rule


def ttt_mlp(chunk: int = 16, memory: Architecture = Residual(BiasedMLP(), learned_norm=True)) -> Rule:
    """TTT-MLP: descent on the l2 bias by mini-batches of frames, on a two-layer MLP inside a norm and a residual.

        f(x; M) = x + gain LN(gelu(x W1 + b1) W2 + b2) + shift
        g_t = sum_i lr_i grad 0.5 |f(k_i; A) - v_i|^2,  A the memory at the start of the mini-batch
        M_t = M_{t-1} - g_t

    MLP memory in a residual norm, l2 bias, nothing forgotten, descent; gradients frozen for `chunk` frames. With chunk
    1 and one write a robot step it is the memory of RoboTTT (arXiv:2607.15275).

    Shapes: weights as the memory has them, K = V under a residual; one write takes N tokens. Chunk form of frozen
    gradients, where `chunk` is above 1: the dual form.
    Source: Sun et al. 2024, arXiv:2407.04620.
    Differs: as in ttt_linear.
    """
    return frozen_gradient(Composed(memory, L2(), Keep(), Descent()), chunk)
