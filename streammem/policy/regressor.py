"""Regressor: identifies what is linear in known features, online, and says how sure it is. Nothing is trained."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError, ShapeError
from streammem.rules.kalman import Kalman, KalmanState, Surprise
from streammem.types import Gates


class Known(NamedTuple):
    """What was identified."""

    filter: KalmanState  # [B, K, V] and [B, K, K]
    newest_s: Tensor  # [B] float64; NaN before the first
    taken: Tensor  # [B] int64 observations
    refused: Tensor  # [B] int64, not finite, or of no confidence between 0 and 1


class Regressor:
    """Payload, friction, gain: coefficients m of target = features m + noise, that may drift and may jump.

        P = P + drift_per_s elapsed_s I
        M, P = Kalman's update, of variance noise^2 / confidence
        read: features M,  features P features^T + noise^2

    noise: standard deviation of a target. drift_per_s: what the variance of a coefficient gains in a second. prior:
    standard deviation of a coefficient before the first observation, around 0, and the most it can ever be. jumps: how
    a coefficient that changes at once is noticed; None never looks. huber: errors above so many deviations lose weight.

    Shapes: features [K] or [B, K], target [V] or [B, V], scalars where V = 1; results likewise.
    Units: the caller's.
    Raises: ConfigError where a number makes no sense, ShapeError at other widths.
    Source: `rules.Kalman`.
    """

    def __init__(
        self,
        features: int,
        noise: float,
        values: int = 1,
        batch: int = 1,
        drift_per_s: float = 0.0,
        prior: float = 10.0,
        jumps: Surprise | None = None,
        huber: float | None = None,
    ):
        if features < 1 or values < 1 or batch < 1 or not noise > 0 or not drift_per_s >= 0 or not prior > 0:
            told = f"features {features}, values {values}, batch {batch}, noise {noise}, drift_per_s {drift_per_s}"
            raise ConfigError(f"{told}, prior {prior}; wanted counts >= 1, noise > 0, drift >= 0, prior > 0")
        self.rule = Kalman(noise**2, 0.0, prior**2, prior**2, huber, jumps)
        self.features, self.values, self.batch, self.drift_per_s = features, values, batch, drift_per_s
        self.state = self._started()

    def observe(self, features: Tensor, target, confidence: float | Tensor = 1.0, time_s: float | None = None) -> None:
        """Learns from one pair of each stream; confidence 0 to 1 is its share of precision, 0 teaches nothing.

        time_s: when; without it no time goes by. What is not finite, or older than the newest, ages nothing; what is
        not finite teaches nothing and is counted.
        """
        key, value = self._rows(features, self.features, "features"), self._rows(target, self.values, "target")
        share = torch.as_tensor(confidence, dtype=torch.float64).expand(self.batch)
        sound = key.isfinite().all(1) & value.isfinite().all(1) & (share >= 0) & (share <= 1)
        state, newest_s = self._aged(sound, time_s)
        rate = torch.where(sound, share, 0.0)[:, None, None]
        one = torch.ones_like(rate)
        key, value = (torch.nan_to_num(a, 0.0, 0.0, 0.0)[:, None] for a in (key, value))
        new = self.rule.write(state, key, value, Gates(rate, one, 0 * one))
        taught = sound & (share > 0)
        self.state = Known(
            tree.where(taught, new, state), newest_s, self.state.taken + taught, self.state.refused + ~sound
        )

    def read(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(value, variance) of a target at these features, noise included."""
        key = self._rows(features, self.features, "features")[:, None]
        value = self.rule.read(self.state.filter, key)[:, 0]
        variance = self.rule.variance(self.state.filter, key)[:, 0].expand_as(value)
        return (value[0], variance[0]) if self._single(features) else (value, variance)

    @property
    def coefficients(self) -> tuple[Tensor, Tensor]:
        """(mean [B, K, V], standard deviation [B, K]) of what is identified."""
        return self.state.filter.memory, self.state.filter.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    def reset(self, mask: Tensor) -> None:
        """Streams where `mask` [B] is true start over."""
        self.state = tree.where(mask, self._started(), self.state)

    def _started(self) -> Known:
        weights = torch.zeros(self.batch, self.features, self.values, dtype=torch.float64)
        count = torch.zeros(self.batch, dtype=torch.int64)
        return Known(self.rule.init(weights), torch.full((self.batch,), torch.nan, dtype=torch.float64), count, count)

    def _aged(self, sound: Tensor, time_s: float | None) -> tuple[KalmanState, Tensor]:
        """(state at the time of the observation, newest time)."""
        state, newest_s = self.state.filter, self.state.newest_s
        if time_s is None:
            return state, newest_s
        elapsed_s = torch.where(sound, time_s - newest_s, 0.0).nan_to_num(0.0).clamp_min(0)
        eye = torch.eye(self.features, dtype=torch.float64)
        p = state.covariance + self.drift_per_s * elapsed_s[:, None, None] * eye
        later = sound & ~(newest_s >= time_s)
        return state._replace(covariance=p), torch.where(later, time_s, newest_s)

    def _rows(self, x, width: int, name: str) -> Tensor:
        """[B, width] float64."""
        x = torch.as_tensor(x, dtype=torch.float64)
        rows = x.reshape(1, -1) if x.ndim < 2 else x
        if rows.shape != (self.batch, width):
            raise ShapeError(f"{name} is {list(x.shape)}; wanted [{self.batch}, {width}], or [{width}] for one stream")
        return rows

    def _single(self, features) -> bool:
        return torch.as_tensor(features).ndim < 2
