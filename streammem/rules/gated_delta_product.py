from streammem.memory.wrappers import TokenByToken
from streammem.rules.gated_delta import gated_delta


def gated_delta_product() -> TokenByToken:
    """Gated delta product: the memory decays once, then several delta steps are made for one token.

        M_t = a_t M_{t-1};  for each row i of the frame:  M_t = M_t - lr_i k_i^T (k_i M_t - v_i)

    The rows of a frame are the n_h steps of one token. A query may have one row, whatever n_h.

    Shapes: memory [..., K, V]; key and value [..., n_h, K] and [..., n_h, V]; retention as in `gated_delta`. Chunk
    form exact.
    Units: none; stable while lr |k|^2 < 2.
    Source: Siems et al. 2025, arXiv:2502.10297.
    """
    return TokenByToken(gated_delta())
