from streammem.memory.algorithm import LACT, Algorithm, Muon
from streammem.memory.architecture import Architecture, SwiGLU
from streammem.memory.bias import Dot
from streammem.memory.retention import UnitNorm
from streammem.memory.rule import Composed


def lact(algorithm: Algorithm = Muon(5, LACT), memory: Architecture = SwiGLU()) -> Composed:
    """LaCT: one step a large chunk on the dot-product bias; output units keep their norms.

        f(x; M) = (silu(x W1) * x W3) W2
        g = sum_i lr_i grad -<f(k_i; M_{t-1}), v_i>
        M_t = norm(M_{t-1} - muon(g)), each column scaled back to the norm it started with

    SwiGLU memory, dot-product bias, norm retention, Muon. The frame is the chunk: its tokens are a set.

    algorithm: Muon, or Momentum() or Descent(), which the norms keep finite too. To be causal, ask before telling
    (ReadFirst); to write some tokens only, give the others a rate of 0.

    Shapes: weights as the memory has them; one write takes the N tokens of a chunk. No chunk form: a frame is a chunk,
    and each starts from the norms of the one before.
    Units: none; with Muon the rates weigh tokens against each other and a common factor changes nothing: a chunk of
    one token moves the memory as far as one of a million.
    Source: Zhang et al. 2025, arXiv:2505.23884.
    Differs: one rate a token, where the paper has one for each matrix. Columns here are rows there.
    """
    return Composed(memory, Dot(), UnitNorm(), algorithm)
