from streammem.memory.algorithm import Descent
from streammem.memory.architecture import Affine, Architecture, Residual
from streammem.memory.bias import L2
from streammem.memory.chunked import frozen_gradient
from streammem.memory.retention import Keep
from streammem.memory.rule import Composed, Rule


def ttt_linear(chunk: int = 16, memory: Architecture = Residual(Affine(), learned_norm=True)) -> Rule:
    """TTT-Linear: descent on the l2 bias by mini-batches of frames, on a linear map inside a norm and a residual.

        f(x; M) = x + gain LN(x W + b) + shift
        g_t = sum_i lr_i grad 0.5 |f(k_i; A) - v_i|^2,  A the memory at the start of the mini-batch
        M_t = M_{t-1} - g_t

    Affine memory in a residual norm, l2 bias, nothing forgotten, descent; gradients frozen for `chunk` frames.

    Shapes: weights as the memory has them, K = V under a residual; one write takes N tokens. Chunk form of frozen
    gradients, where `chunk` is above 1: the dual form.
    Units: none. At W = 0 the norm has no variance and its gradient is of the order of 1000: start at random weights of
    about 0.02.
    Source: Sun et al. 2024, arXiv:2407.04620.
    Differs: the loss has a factor 0.5, so that lr here is twice eta there; the step is the rate of the token, without
    the released code's 1 / position. Gain and shift belong to the outer loop.
    """
    return frozen_gradient(Composed(memory, L2(), Keep(), Descent()), chunk)
