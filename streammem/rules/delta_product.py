from streammem.memory.wrappers import TokenByToken
from streammem.rules.delta import delta


def delta_product() -> TokenByToken:
    """Delta product: several delta steps for one token, each with a key, value and rate of its own.

        M_t = M_{t-1};  for each row i of the frame:  M_t = M_t - lr_i k_i^T (k_i M_t - v_i)

    The rows of a frame are the n_h steps of one token: the transition is a product of n_h generalised Householder
    matrices, with rates up to 2 any rotation of n_h planes. A query may have one row, whatever n_h.

    Shapes: memory [..., K, V]; key and value [..., n_h, K] and [..., n_h, V]. Chunk form exact.
    Units: none; stable while lr |k|^2 < 2.
    Source: Siems et al. 2025, arXiv:2502.10297.
    """
    return TokenByToken(delta())
