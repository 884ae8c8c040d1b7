"""The camera that robots are shown through: where points of the world are in the picture."""

from typing import NamedTuple

import numpy as np


class Camera(NamedTuple):
    """A pinhole camera that looks from `eye` at `target`, its picture upright.

    field_deg: of view, from the lower edge of the picture to the upper one.
    """

    eye: tuple[float, float, float] = (1.3, -1.2, 0.95)  # metres
    target: tuple[float, float, float] = (0.36, 0.0, 0.33)
    field_deg: float = 38.0

    @property
    def axes(self) -> np.ndarray:
        """To the right, up, and back from the scene: [3, 3], in rows."""
        back = np.subtract(self.eye, self.target)
        back = back / np.linalg.norm(back)
        right = np.cross([0.0, 0.0, 1.0], back)
        right = right / np.linalg.norm(right)
        return np.stack([right, np.cross(back, right), back])

    def project(self, points: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (x to the right, y down) and distances along the view: [..., 3] m -> [..., 2], [...] m."""
        seen = (np.asarray(points, dtype=np.float64) - self.eye) @ self.axes.T
        depth = np.maximum(-seen[..., 2], 1e-3)
        focal = height / 2 / np.tan(np.radians(self.field_deg) / 2)
        x, y = width / 2 + focal * seen[..., 0] / depth, height / 2 - focal * seen[..., 1] / depth
        return np.stack([x, y], -1), depth
