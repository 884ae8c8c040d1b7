from streammem.memory.algorithm import Descent
from streammem.memory.architecture import Matrix
from streammem.memory.bias import Dot
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed


def gated_hebbian() -> Composed:
    """Gated Hebbian rule: linear attention with decay (RetNet, Mamba-2; GLA with a gate by key channel).

        M_t = a_t M_{t-1} + sum_i lr_i k_i^T v_i

    Matrix memory, dot-product bias, decay, descent.

    Shapes: memory [..., K, V]; one write takes N tokens; retention [..., 1, 1] or, by channel, [..., K, 1]. Chunk form
    exact.
    Source: Yang et al. 2023, arXiv:2312.06635.
    """
    return Composed(Matrix(), Dot(), Decay(), Descent())
