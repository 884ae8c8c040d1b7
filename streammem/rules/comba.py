from dataclasses import dataclass

from torch import Tensor

from streammem.chunk.affine import Terms
from streammem.errors import ConfigError
from streammem.memory.linear import Linear


@dataclass(frozen=True)
class Comba(Linear):
    """Comba: closed-loop control; what is erased is read with a weakened key, and the query is corrected by the key.

        R_t = a_t M_{t-1}
        M_t = R_t + sum_i lr_i k_i^T (v_i - feedback k_i R_t)
        y_t = (q_t - correction k_t) M_t

    feedback: share of what is read that is taken away, in [0, 1]; gates.erase, if given, is lr times that share, by
    token. correction: D of the readout, used where a step brings as many queries as keys. Feedback 1 and correction 0
    is `gated_delta`.

    Shapes: memory [..., K, V]; one write takes N tokens. Chunk form exact.
    Units: none; stable while lr * feedback * lambda_max(sum_i k_i^T k_i) < 2.
    Raises: ConfigError where feedback is not in [0, 1].
    Source: Hu et al. 2025, arXiv:2506.02475; numbers from the public implementation.
    Differs: tokens of one frame share one gradient; `read` alone has no key, and so no correction.
    """

    feedback: float = 0.9
    correction: float = 0.02

    def __post_init__(self):
        if not 0 <= self.feedback <= 1:
            raise ConfigError(f"feedback of Comba is {self.feedback}; wanted a share in [0, 1]")

    def terms(self, key, value, gates, by_token):
        erase = gates.erase if isinstance(gates.erase, Tensor) else self.feedback * gates.lr
        return Terms(key, erase * key, gates.lr * value, gates.retention)

    def step(self, state, x):
        state = self.write(state, x.key, x.value, x.gates)
        return state, self.read(state, x.query - self.correction * x.key)

    def sequence(self, state, x, chunk, by_token=False):
        corrected = x._replace(query=x.query - self.correction * x.key)
        return Linear.sequence(self, state, corrected, chunk, by_token)
