from streammem.memory.algorithm import Muon
from streammem.memory.architecture import Matrix
from streammem.memory.bias import Dot
from streammem.memory.retention import Keep
from streammem.memory.rule import Composed


def muon_hebbian() -> Composed:
    """Muon on the dot-product bias: each frame adds a near-orthogonal matrix.

        M_t = M_{t-1} + orthogonalise(sum_i lr_i k_i^T v_i)

    Matrix memory, dot-product bias, nothing forgotten, Muon.

    Shapes: memory [..., K, V]; one write takes N tokens. No chunk form: each frame is orthogonalised alone.
    Units: none; the step has singular values near 1, whatever the rates.
    Source: the write of LaCT, Zhang et al. 2025, arXiv:2505.23884.
    Differs: a matrix in place of SwiGLU, and no renormalisation of the weights.
    """
    return Composed(Matrix(), Dot(), Keep(), Muon())
