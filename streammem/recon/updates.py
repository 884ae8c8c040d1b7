"""The update rules by name, and the one that wraps another."""

from dataclasses import dataclass

import torch

from streammem.errors import ConfigError
from streammem.recon.adaptive import FrameGate, Kalman, Orthogonal, TemporalSpatial
from streammem.recon.update import Confidence, Constant, Replace, Updated, UpdateRule, opened


@dataclass(frozen=True)
class TopK(UpdateRule):
    """Only the tokens that agree least with their candidate are written; the others stay exactly as they are.

        a_j = cos(S_j, C_j);  W = the round(share S) tokens of least a
        S_j,t = within(...)_j for j in W, else S_j,t-1

    share: of tokens that are written. within: the rule that writes them.
    Raises: ConfigError where the share is not in (0, 1].
    Source: MeMix, arXiv:2603.15330: write the least aligned tokens, 708 of 768.
    Differs: the source was read in summary; the cosine between token and candidate is ours.
    """

    share: float = 708 / 768
    within: UpdateRule = Replace()

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ConfigError(f"share is {self.share}; wanted a share of the tokens in (0, 1]")

    @property
    def asks(self):
        """What the rule within asks for."""
        return self.within.asks

    def init(self, tokens, feature_width):
        return self.within.init(tokens, feature_width)

    def update(self, own, old, candidate, evidence):
        found = self.within.update(own, old, candidate, evidence)
        agreement = torch.cosine_similarity(old, candidate, dim=-1)  # [B, S]
        rank = agreement.argsort(-1).argsort(-1)
        count = max(1, round(self.share * old.shape[1]))
        written = opened((rank < count).to(old.dtype), evidence.first) > 0
        tokens = torch.where(written[..., None], found.tokens, old)
        return Updated(found.own, tokens, found.gate * written)


UPDATES: dict[str, type[UpdateRule]] = {
    "replace": Replace,
    "confidence": Confidence,
    "constant": Constant,
    "kalman": Kalman,
    "topk": TopK,
    "frame": FrameGate,
    "temporal_spatial": TemporalSpatial,
    "orthogonal": Orthogonal,
}
