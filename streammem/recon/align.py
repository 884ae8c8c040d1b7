"""Two chunks of a stream, one frame in both: the similarity between their worlds, from matched points."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError
from streammem.geometry import motion_from_quaternion
from streammem.recon.similarity import Similarity, identity
from streammem.shapes import check

STATUS = ("aligned", "too few points", "degenerate", "disagree")
ALIGNED, TOO_FEW, DEGENERATE, DISAGREE = range(len(STATUS))
PAIRS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))  # the planes of a sweep, two at a time
JURY = 512  # points that judge a guess
GOLDEN = 0.6180339887498949
SWEEPS = 6  # of the 4 x 4 decomposition; it converges quadratically, four reach float64


class Alignment(NamedTuple):
    """What was found, by stream."""

    similarity: Similarity  # target from source; the identity where the status is not "aligned"
    status_code: Tensor  # [B] int64, index into STATUS
    residual: Tensor  # [B] median distance of used points, in the target's units
    used: Tensor  # [B] share of the points' weight that agrees


@dataclass(frozen=True)
class Robust:
    """How matched points are aligned: least squares, again and again with weights by how well each point agrees.

        start: of `starts` triples of points, the one whose similarity leaves the least median distance
        c = sum w a / sum w, d = sum w b / sum w;  H = sum w (b - d) (a - c)^T
        R = rotation of the largest eigenvector of Horn's matrix of H;  s = sqrt(sum w |b - d|^2 / sum w |a - c|^2)
        t = d - s R c;  r = |b - s R a - t|;  m = median r
        w = confidence * min(1, huber m / r)             in the first steps
        w = confidence * max(0, 1 - (r / (tukey m))^2)^2   in the last ones

    Raises: ConfigError for values that align nothing.
    Source: Umeyama 1991, IEEE PAMI 13(4); Horn 1987, J. Opt. Soc. Am. A 4(4), for R without a decomposition that waits
        for the device, and for the symmetric scale; Holland, Welsch 1977 for the weights; Rousseeuw 1984 for the start.
    Differs: Umeyama's scale is a regression: noise in the source makes it small, reset after reset. The symmetric one
        of a to b is the inverse of that of b to a.
    """

    starts: int = 64  # triples; 0 starts from all points alike
    huber_steps: int = 2
    tukey_steps: int = 8
    huber: float = 1.0  # medians from which on a residual counts linearly
    tukey: float = 4.0  # medians from which on it does not count
    least_points: int = 24
    most_points: int = 50_000  # of more, every n-th is taken
    least_gap: float = 1e-3  # between the two best rotations, as a share of the spread; 0 for points on a line
    worst: float = 0.3  # median residual, as a share of the target's spread

    def __post_init__(self):
        if (
            min(self.huber_steps, self.starts + 1) < 1
            or self.tukey_steps < 0
            or not min(self.huber, self.tukey) > 0
            or not 3 <= self.least_points <= self.most_points
        ):
            raise ConfigError(f"{self}; wanted a step, positive limits and at least 3 points")

    def __call__(self, source: Tensor, target: Tensor, confidence: Tensor) -> Alignment:
        """Aligns without a look from the host.

        Shapes: source, target [B, P, 3]; confidence [B, P], 0 for points that do not count.
        Raises: ShapeError for other shapes; whatever the values are, a status says so.
        """
        size = check(source, "B P 3", "source")
        check(target, "B P 3", "target", **size)
        check(confidence, "B P", "confidence", **size)
        step = -(-size["P"] // self.most_points)
        source, target, confidence = source[:, ::step].double(), target[:, ::step].double(), confidence[:, ::step]
        valid = source.isfinite().all(-1) & target.isfinite().all(-1) & confidence.isfinite() & (confidence > 0)
        source, target = (torch.where(valid[..., None], x, 0) for x in (source, target))
        trust = torch.where(valid, confidence, 0).double()  # [B, P]
        weight = trust if self.starts == 0 else trust * self._start(source, target, trust)
        for i in range(self.huber_steps + self.tukey_steps):
            found, gap, spread = _least_squares(source, target, weight)
            residual = (target - found.points(source)).norm(dim=-1)
            median = residual.where(valid, torch.nan).nanmedian(-1).values
            ratio = residual / torch.maximum(median, 1e-9 * spread)[:, None].clamp(min=1e-300)
            weight = trust * (self._huber(ratio) if i < self.huber_steps else self._tukey(ratio))
        agree = (trust * (ratio < self.tukey)).sum(-1) / trust.sum(-1).clamp(min=1e-300)
        status = self._status(valid, gap, median, spread)
        kept = tree.where(status == ALIGNED, found, identity(len(status), status.device))
        return Alignment(kept, status, median, agree)

    def _start(self, source: Tensor, target: Tensor, trust: Tensor) -> Tensor:
        """Weights [B, P] by how well points agree with the best of the triples, judged by some of the points."""
        batch = len(source)
        triples = _drawn(trust, 3 * self.starts)  # [B, 3 K], the likelier the more they count
        a, b = (x.gather(1, triples[..., None].expand(-1, -1, 3)).view(-1, 3, 3) for x in (source, target))
        guesses, _, _ = _least_squares(a, b, torch.ones_like(a[..., 0]))  # B K of them
        jury = _drawn(trust, JURY)[..., None].expand(-1, -1, 3)
        a, b = (x.gather(1, jury).repeat_interleave(self.starts, 0) for x in (source, target))
        median = (b - guesses.points(a)).norm(dim=-1).median(-1).values.view(batch, -1)  # [B, K]
        median, best = median.where(median.isfinite(), torch.inf).min(-1)
        best = best + self.starts * torch.arange(batch, device=best.device)
        residual = (target - tree.map(lambda x: x[best], guesses).points(source)).norm(dim=-1)
        return self._huber(residual / median.clamp(min=1e-300)[:, None])

    def _tukey(self, ratio: Tensor) -> Tensor:
        return (1 - (ratio / self.tukey).square()).clamp(min=0).square()

    def _huber(self, ratio: Tensor) -> Tensor:
        return (self.huber / ratio.clamp(min=self.huber)).clamp(max=1)

    def _status(self, valid: Tensor, gap: Tensor, median: Tensor, spread: Tensor) -> Tensor:
        status = torch.where(median <= self.worst * spread, ALIGNED, DISAGREE)
        status = torch.where((gap > self.least_gap) & (spread > 0) & median.isfinite(), status, DEGENERATE)
        return torch.where(valid.sum(-1) >= self.least_points, status, TOO_FEW)


def _drawn(trust: Tensor, count: int) -> Tensor:
    """Indices [B, count] of points, as often as they are trusted, evenly over all of them, the same in every run."""
    u = (torch.arange(count, dtype=torch.float64, device=trust.device) * GOLDEN + 0.5).frac()
    total = trust.cumsum(-1)
    wanted = u * total[:, -1:]
    return torch.searchsorted(total, wanted).clamp(max=trust.shape[1] - 1)


def _least_squares(source: Tensor, target: Tensor, weight: Tensor) -> tuple[Similarity, Tensor, Tensor]:
    """The best similarity under weights [B, P], how far the next best rotation is, and the target's spread."""
    share = (weight / weight.sum(-1, keepdim=True).clamp(min=1e-300))[..., None]  # [B, P, 1]
    c, d = (share * source).sum(-2), (share * target).sum(-2)
    a, b = source - c[:, None], target - d[:, None]
    spread_a, spread_b = ((share * x.square()).sum((-2, -1)).sqrt() for x in (a, b))
    both = (spread_a * spread_b).clamp(min=1e-300)
    values, vectors = eigen4(_horn((share * b).mT @ a / both[:, None, None]))
    order = values.argsort(-1, descending=True)
    wxyz = vectors.gather(-1, order[:, None, :1].expand(-1, 4, 1))[..., 0]
    rotation = motion_from_quaternion(torch.zeros_like(c), wxyz.roll(-1, -1))[:, :3, :3]
    best, second = values.gather(-1, order[:, :2]).unbind(-1)
    scale = spread_b / spread_a.clamp(min=1e-300)
    moved = scale[:, None] * (rotation @ c[..., None])[..., 0]
    return Similarity(scale, rotation, d - moved), (best - second) / 2, spread_b


def _horn(H: Tensor) -> Tensor:
    """The symmetric [B, 4, 4] whose largest eigenvector is the quaternion, w first, of sum b a^T = H [B, 3, 3]."""
    (xx, yx, zx), (xy, yy, zy), (xz, yz, zz) = (row.unbind(-1) for row in H.unbind(-2))  # rows b, columns a
    rows = [
        [xx + yy + zz, yz - zy, zx - xz, xy - yx],
        [yz - zy, xx - yy - zz, xy + yx, zx + xz],
        [zx - xz, xy + yx, yy - xx - zz, yz + zy],
        [xy - yx, zx + xz, yz + zy, zz - xx - yy],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def eigen4(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [..., 4], in no order, and vectors [..., 4, 4], as columns, of symmetric matrices [..., 4, 4].

    Jacobi's rotations, a fixed number of them: no library call that waits for the device, exact for equal values too.
    Source: Golub, Van Loan 2013, Matrix Computations, section 8.5.
    """
    V = torch.eye(4, dtype=A.dtype, device=A.device).expand_as(A)
    for _ in range(SWEEPS):
        for pairs in PAIRS:
            G = torch.zeros_like(A)
            for p, q in pairs:
                off, apart = A[..., p, q], A[..., q, q] - A[..., p, p]
                flat = off.abs() <= 1e-300
                tau = apart / (2 * torch.where(flat, 1, off))
                t = torch.where(tau < 0, -1.0, 1.0) / (tau.abs() + (1 + tau.square()).sqrt())
                t = torch.where(flat, 0, t)
                cosine = (1 + t.square()).rsqrt()
                G[..., p, p] = G[..., q, q] = cosine
                G[..., p, q], G[..., q, p] = t * cosine, -t * cosine
            A, V = G.mT @ A @ G, V @ G
    return A.diagonal(dim1=-2, dim2=-1), V
