"""The reconstruction network: one step of a stream of views."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.errors import ShapeError
from streammem.recon import heads
from streammem.recon.config import ReconConfig
from streammem.recon.decoder import Decoded, Places, decode, decoder_blocks, image_grid, state_grid
from streammem.recon.encoder import PatchEmbed, encode, fuse, image_blocks, norm, ray_blocks
from streammem.recon.pose_memory import PoseMemory
from streammem.recon.rope import grid, rotation
from streammem.recon.state import Evidence, ReconReadout, ReconState, View, as_view
from streammem.recon.update import Replace, UpdateRule
from streammem.types import Frame


class Proposal(NamedTuple):
    """Everything that one view makes of a state, before it is decided what is kept."""

    features: Tensor  # [B, N, E] fused, before the decoder
    pose_token: Tensor  # [B, 1, D] entering the decoder
    layers: heads.Layers
    candidate: Tensor  # [B, S, D]
    pose_memory: Tensor  # [B, M, 2 D]
    evidence: Evidence


class ReconModel(nn.Module):
    """Streaming reconstruction from colour: (state, frame) -> (state, readout), parameters by the official names.

        F = encode(image) [+ encode(rays)];  g = mean(F);  z = first view ? pose_token : memory.read(g)
        C, X = twin decoders(S, [z; F W])
        S' = rule(S, C, evidence);  memory' = memory.write(g, X_pose);  readout = heads(F, X)

    A state holds no view that was not written: a view without an image is only asked. Frames are types.Frame, or Views
    where rays are known. The readout of a frame never depends on what that frame writes.

    update: the rule; a value that may be exchanged at any time, its state then starts anew with `init_state`.
    masked_tokens: whether a learned token stands for the image or the rays that a View lacks, as in training; without,
        what lacks adds nothing, as in the official step by step code.

    Raises: ShapeError at images whose sides are no multiple of a patch.
    Source: CUT3R, Wang et al. 2025, arXiv:2501.12387; TTT3R, arXiv:2509.26645.
    """

    def __init__(self, config: ReconConfig, update: UpdateRule = Replace(), masked_tokens: bool = True):
        super().__init__()
        self.config, self.update, self.masked_tokens = config, update, masked_tokens
        enc, dec = config.enc_embed_dim, config.dec_embed_dim
        self.pose_token = nn.Parameter(torch.randn(1, 1, dec) * 0.02)
        self.masked_img_token = nn.Parameter(torch.randn(1, enc) * 0.02)
        self.masked_ray_map_token = nn.Parameter(torch.randn(1, enc) * 0.02)
        self.patch_embed = PatchEmbed(3, enc, config.patch_size)
        self.enc_blocks = image_blocks(config)
        self.enc_norm = norm(enc)
        self.patch_embed_ray_map = PatchEmbed(6, enc, config.patch_size)
        self.enc_blocks_ray_map = ray_blocks(config)
        self.enc_norm_ray_map = norm(enc)
        self.register_tokens = nn.Embedding(config.state_size, enc)
        self.decoder_embed_state = nn.Linear(enc, dec)
        self.decoder_embed = nn.Linear(enc, dec)
        self.dec_blocks_state = decoder_blocks(config, config.state_dec_num_heads)
        self.dec_norm_state = norm(dec)
        self.dec_blocks = decoder_blocks(config, config.dec_num_heads)
        self.dec_norm = norm(dec)
        self.pose_retriever = PoseMemory(config)
        self.downstream_head = heads.HEADS[config.head_type](config)

    def init_state(self, batch: int) -> ReconState:
        """The state before the first view: learned tokens and slots, the same for every stream."""
        tokens = self.decoder_embed_state(self.register_tokens.weight).expand(batch, -1, -1)
        memory = self.pose_retriever.mem.expand(batch, -1, -1)
        frames = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
        return ReconState(tokens, memory, frames, self.update.init(tokens, self.config.enc_embed_dim))

    def forward(self, state: ReconState, frame: Frame | View) -> tuple[ReconState, ReconReadout]:
        view = as_view(frame)
        size = view.image.shape[-2:]
        proposal = self.propose(state, self.features(view), size, first=state.frames == 0)
        new, gate = self.commit(state, proposal)
        return tree.where(view.has_image, new, state), self.read(proposal.layers, size, gate)

    def query(self, state: ReconState, ray_map: Tensor) -> ReconReadout:
        """What the state holds where rays [B, h, w, 6] look; the state stays as it is."""
        seen = torch.ones(len(ray_map), dtype=torch.bool, device=ray_map.device)
        blank = torch.zeros_like(ray_map[..., :3]).permute(0, 3, 1, 2)
        return self(state, View(blank, ray_map, ~seen, seen, seen, ~seen))[1]

    def propose(self, state: ReconState, features: Tensor, size: tuple[int, int], first: Tensor) -> Proposal:
        """Lets the features [B, N, E] of a view of `size` meet the state.

        first: streams that hold nothing yet, [B].
        """
        rows, columns = self._grid(size)
        summary = features.mean(1, keepdim=True)  # [B, 1, E]
        recalled = self.pose_retriever.read(state.pose_memory, summary)
        pose_token = torch.where(first[:, None, None], self.pose_token, recalled)
        image = torch.cat([pose_token, self.decoder_embed(features)], 1)  # [B, 1 + N, D]
        places = self._places(rows, columns, image)
        decoded = decode(state.tokens, image, self.dec_blocks_state, self.dec_blocks, places, self.update.asks)
        layers = self._layers(features, decoded)
        pose_memory = self.pose_retriever.write(state.pose_memory, summary, layers.pose)
        evidence = Evidence(first, summary[:, 0], *decoded.glance)
        return Proposal(features, pose_token, layers, self.dec_norm_state(decoded.candidate), pose_memory, evidence)

    def commit(self, state: ReconState, proposal: Proposal) -> tuple[ReconState, Tensor]:
        """The state with the proposal in it, as far as the rule lets it, and the gate [B, S]."""
        updated = self.update.update(state.rule, state.tokens, proposal.candidate, proposal.evidence)
        return ReconState(updated.tokens, proposal.pose_memory, state.frames + 1, updated.own), updated.gate

    def features(self, view: View) -> Tensor:
        """Tokens of what the view brings, [B, N, E]."""
        rows, columns = self._grid(view.image.shape[-2:])
        place, config = grid(rows, columns, view.image.device), self.config
        by = rotation(place, config.enc_embed_dim // config.enc_num_heads, view.image.dtype)
        image = encode(view.image, self.patch_embed, self.enc_blocks, self.enc_norm, by)
        if view.ray_map is None:
            return image
        by = rotation(place, config.enc_embed_dim // config.ray_enc_num_heads, view.image.dtype)
        ray_map = torch.where(view.has_ray_map[:, None, None, None], view.ray_map, 0.0).permute(0, 3, 1, 2)
        rays = encode(ray_map, self.patch_embed_ray_map, self.enc_blocks_ray_map, self.enc_norm_ray_map, by)
        nothing = torch.zeros_like(self.masked_img_token)
        lacking = (self.masked_img_token, self.masked_ray_map_token) if self.masked_tokens else (nothing, nothing)
        return fuse(view, image, rays, *lacking)

    def read(self, layers: heads.Layers, size: tuple[int, int], gate: Tensor) -> ReconReadout:
        """The heads' answer for images of `size`."""
        config = self.config
        rows, columns = self._grid(size)
        width = config.dec_embed_dim // config.dec_num_heads
        by = rotation(grid(rows, columns, layers.last.device), width, layers.last.dtype)
        maps = self.downstream_head(layers, by, rows, columns)
        camera, world = (x.split([3, 1], 1) for x in (maps.camera, maps.world))
        return ReconReadout(
            heads.points(camera[0]),
            heads.confidence(camera[1][:, 0]),
            heads.points(world[0]),
            heads.confidence(world[1][:, 0]),
            heads.colour(maps.colour),
            self.pose(layers.pose),
            gate,
        )

    def pose(self, token: Tensor) -> Tensor:
        """The camera in the world from the last layer's pose token [B, 1, D]: [B, 7]."""
        return heads.pose(self.downstream_head.pose_head(token))

    def _layers(self, features: Tensor, decoded: Decoded) -> heads.Layers:
        depth = self.config.dec_depth
        last = self.dec_norm(decoded.layers[-1])
        half, three_quarters = (decoded.layers[depth * share // 4 - 1][:, 1:] for share in (2, 3))
        return heads.Layers(features, half, three_quarters, last[:, 1:], last[:, :1])

    def _places(self, rows: int, columns: int, like: Tensor) -> Places:
        config = self.config
        image, state = image_grid(rows, columns, like.device), state_grid(config, like.device)
        widths = (config.dec_embed_dim // config.dec_num_heads, config.dec_embed_dim // config.state_dec_num_heads)
        return Places(*(rotation(at, width, like.dtype) for width in widths for at in (image, state)))

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = size
        patch = self.config.patch_size
        if height % patch or width % patch:
            raise ShapeError(f"image is {height} x {width}; wanted sides that are multiples of {patch} (the patch)")
        return height // patch, width // patch


def revisit(model: ReconModel, state: ReconState, frames: Iterable[Frame | View]) -> Iterator[ReconReadout]:
    """Yields what the state, learnt from a whole recording, now says of each of its frames; nothing is written."""
    for frame in frames:
        yield model(state, frame)[1]
