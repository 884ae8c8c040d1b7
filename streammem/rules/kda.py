from streammem.memory.algorithm import Descent
from streammem.memory.architecture import Matrix
from streammem.memory.bias import L2
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed


def kda() -> Composed:
    """Kimi delta attention: the gated delta rule with a retention of its own for every key channel.

        R_t = diag(a_t) M_{t-1}
        M_t = R_t - sum_i lr_i k_i^T (k_i R_t - v_i)

    Matrix memory, l2 bias, decay by channel, descent: the axes of `gated_delta`; the shape of the gate differs.

    Shapes: memory [..., K, V]; one write takes N tokens; retention [..., K, 1]. Chunk form exact.
    Units: none; stable while lr * lambda_max(sum_i k_i^T k_i) < 2.
    Source: Kimi Linear 2025, arXiv:2510.26692.
    Differs: tokens of one frame share one gradient; for the token recurrence use TokenByToken.
    """
    return Composed(Matrix(), L2(), Decay(), Descent(), retain_first=True)
