"""A dense prediction head: four layers of tokens, from coarse to fine, to a map of the image's size.

Source: Ranftl et al. 2021, arXiv:2103.13413, with the sizes of the official checkpoints.
"""

from torch import Tensor, nn
from torch.nn.functional import interpolate

LAYERS = (96, 192, 384, 768)
FEATURES = 256
LAST = 128


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))). Shapes: [B, C, h, w]."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(FEATURES, FEATURES, 3, padding=1)
        self.conv2 = nn.Conv2d(FEATURES, FEATURES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x.relu()).relu())


class Fusion(nn.Module):
    """Adds a finer layer and doubles the size: conv(up(res2(x + res1(skip)))).

    Shapes: [B, C, h, w] -> [B, C, 2h, 2w].
    """

    def __init__(self):
        super().__init__()
        self.out_conv = nn.Conv2d(FEATURES, FEATURES, 1)
        self.resConfUnit1 = Residual()
        self.resConfUnit2 = Residual()

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        if skip is not None:
            x = x + self.resConfUnit1(skip)
        return self.out_conv(doubled(self.resConfUnit2(x)))


class Dpt(nn.Module):
    """Maps of `channels` numbers a pixel.

    Shapes: four layers of tokens [B, N, *], the first of width `first`, the others `dim` -> [B, channels, 16 r, 16 c].
    """

    def __init__(self, first: int, dim: int, channels: int):
        super().__init__()
        self.scratch = _scratch()
        self.head = nn.Sequential(
            nn.Conv2d(FEATURES, LAST, 3, padding=1),
            Double(),
            nn.Conv2d(LAST, LAST, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(LAST, channels, 1),
        )
        self.act_postprocess = _resizers(first, dim)

    def forward(self, layers: list[Tensor], rows: int, columns: int) -> Tensor:
        maps = [x.mT.unflatten(2, (rows, columns)) for x in layers]
        one, two, three, four = (
            reduce(resize(x)) for reduce, resize, x in zip(self.scratch.layer_rn, self.act_postprocess, maps)
        )
        x = self.scratch.refinenet4(four)[..., : three.shape[2], : three.shape[3]]  # odd sizes double to one more
        x = self.scratch.refinenet3(x, three)
        x = self.scratch.refinenet2(x, two)
        return self.head(self.scratch.refinenet1(x, one))


class Double(nn.Module):
    """Twice the size."""

    def forward(self, x: Tensor) -> Tensor:
        return doubled(x)


def doubled(x: Tensor) -> Tensor:
    """Bilinear, corners on corners: y[i] = x(i (h - 1) / (2 h - 1)) along each axis.

    Shapes: [B, C, h, w] -> [B, C, 2h, 2w].
    """
    return interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


def _scratch() -> nn.Module:
    """Layers that a checkpoint names twice share one module."""
    scratch = nn.Module()
    reduce = [nn.Conv2d(width, FEATURES, 3, padding=1, bias=False) for width in LAYERS]
    for i, layer in enumerate(reduce, 1):
        scratch.add_module(f"layer{i}_rn", layer)
    scratch.layer_rn = nn.ModuleList(reduce)
    for i in range(1, 5):
        scratch.add_module(f"refinenet{i}", Fusion())
    return scratch


def _resizers(first: int, dim: int) -> nn.ModuleList:
    """To 4, 2, 1 and 1/2 times the grid of patches."""
    a, b, c, d = LAYERS
    return nn.ModuleList(
        [
            nn.Sequential(nn.Conv2d(first, a, 1), nn.ConvTranspose2d(a, a, 4, stride=4)),
            nn.Sequential(nn.Conv2d(dim, b, 1), nn.ConvTranspose2d(b, b, 2, stride=2)),
            nn.Sequential(nn.Conv2d(dim, c, 1)),
            nn.Sequential(nn.Conv2d(dim, d, 1), nn.Conv2d(d, d, 3, stride=2, padding=1)),
        ]
    )
