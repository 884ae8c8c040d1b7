"""Sizes of a reconstruction network, by the names its checkpoints use."""

from dataclasses import dataclass
from typing import Literal

from streammem.errors import ConfigError


@dataclass(frozen=True)
class ReconConfig:
    """What a checkpoint cannot say of itself, and what its shapes say again.

    Raises: ConfigError where heads do not divide a width into runs of four, or a depth is too small for the heads.
    """

    head_type: Literal["linear", "dpt"] = "linear"
    patch_size: int = 16  # pixels
    enc_embed_dim: int = 1024
    enc_depth: int = 24
    enc_num_heads: int = 16
    dec_embed_dim: int = 768
    dec_depth: int = 12
    dec_num_heads: int = 12  # image decoder, pose memory and conditioned transform
    state_dec_num_heads: int = 16  # the state's own: a wrong count loads and is wrong in silence
    ray_enc_depth: int = 2
    ray_enc_num_heads: int = 16
    state_size: int = 768  # tokens
    state_pe: Literal["1d", "2d", "none"] = "2d"
    local_mem_size: int = 256  # slots of the pose memory
    rope_half_rounding: bool = True  # image encoder: queries and keys pass through float16, as official weights expect
    image_size: tuple[int, int] = (512, 512)  # height, width of training; any multiple of a patch runs

    def __post_init__(self):
        widths = {
            "enc_num_heads": (self.enc_embed_dim, self.enc_num_heads),
            "dec_num_heads": (self.dec_embed_dim, self.dec_num_heads),
            "state_dec_num_heads": (self.dec_embed_dim, self.state_dec_num_heads),
            "ray_enc_num_heads": (self.enc_embed_dim, self.ray_enc_num_heads),
        }
        for name, (width, heads) in widths.items():
            if heads < 1 or width % (4 * heads):
                raise ConfigError(f"{name} is {heads} at width {width}; wanted heads whose width is a multiple of 4")
        if self.dec_depth < 4 or self.dec_depth % 4:
            raise ConfigError(f"dec_depth is {self.dec_depth}; wanted a multiple of 4: heads read at 2/4, 3/4 and 4/4")
        if self.head_type not in ("linear", "dpt"):
            raise ConfigError(f"head_type is {self.head_type!r}; wanted linear or dpt")
        if self.state_pe not in ("1d", "2d", "none"):
            raise ConfigError(f"state_pe is {self.state_pe!r}; wanted 1d, 2d or none")
        if min(self.patch_size, self.state_size, self.local_mem_size, self.enc_depth, self.ray_enc_depth) < 1:
            raise ConfigError("a patch, a state, a memory or an encoder is empty; wanted sizes of at least 1")
        if self.head_type == "dpt" and self.patch_size != 16:
            raise ConfigError(
                f"patch_size is {self.patch_size} with a dpt head; wanted 16: its upsampling is cut to it"
            )

    @property
    def state_bytes(self) -> int:
        """Bytes of what one stream carries in float32, without the update rule's own."""
        return 4 * self.dec_embed_dim * (self.state_size + 2 * self.local_mem_size)


_TINY = {
    "enc_embed_dim": 64,
    "enc_depth": 2,
    "enc_num_heads": 4,
    "dec_embed_dim": 48,
    "dec_depth": 4,
    "dec_num_heads": 4,
    "state_dec_num_heads": 3,
    "state_size": 27,
    "local_mem_size": 12,
    "image_size": (64, 64),
}
PRESETS = {  # full512_dpt is the released cut3r_512_dpt_4_64, full224_linear is cut3r_224_linear_4
    "tiny_linear": ReconConfig("linear", **_TINY),
    "tiny_dpt": ReconConfig("dpt", **_TINY),
    "full512_dpt": ReconConfig("dpt"),
    "full224_linear": ReconConfig("linear", image_size=(224, 224)),
}
