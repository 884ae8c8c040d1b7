"""Training of the colour-only network, stage by stage."""

import math
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from streammem.errors import CheckpointError
from streammem.geometry import motion_from_quaternion, rotation_angle
from streammem.recon import weights
from streammem.recon.model import ReconModel
from streammem.sources.rooms import WALKS, looking

from ..training import Training, drawn_by
from .data import UNSEEN, Clips, Rooms, rendered, seeds
from .loss import errors, misplaced, rollout, seen_features, truth
from .settings import ReconTrainSettings

PLACE = 2.5  # of the vector in the channels that turn by a radian a patch: one patch further weighs about e^-2
LEVEL = 1.2  # in those that turn slowly, against each other: the mean logit begins near -0.7, a gate of a third
WEIGHTS = {"camera": 0.5, "world": 0.5, "translation": 2.0, "rotation": 4.0, "colour": 0.05}
MIDDLE = looking(np.array([0.0, 0.0, 1.4]), np.array([1.0, 0.0, 1.4])).float()  # a camera in the middle, ahead


class ReconTrainer(Training):
    """A network and its optimiser on their way.

    Raises: CheckpointError where the weights to begin with are of another network.
    """

    def __init__(self, settings: ReconTrainSettings, rooms: Rooms):
        torch.manual_seed(settings.seed)
        self.rooms, model = rooms, ReconModel(settings.model)
        initialise(model)
        if settings.start is not None:
            begun, _ = weights.load(settings.start)
            if begun.config != settings.model:
                raise CheckpointError(f"{settings.start} is of {begun.config}; wanted {settings.model}")
            model.load_state_dict(begun.state_dict())
        if settings.shut:
            shut(model)
        width, pixels = settings.model.enc_embed_dim, settings.model.patch_size**2
        self.places = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, 3 * pixels))  # for training alone
        both = nn.ModuleList([model, self.places])
        optimiser = torch.optim.AdamW(_groups(both, settings.weight_decay), betas=(0.9, 0.95))
        super().__init__(settings, model, optimiser, "recon", places=self.places)
        self._unseen = unseen(settings)

    def advance(self) -> float:
        """One step of the optimiser; returns the loss before it.

        Raises: ConfigError where the loss is not finite.
        """
        s, stage = self.settings, self.settings.stage(self.step)
        g = torch.Generator().manual_seed(drawn_by(s.seed, self.step))
        draw = self.rooms.scattered if stage.kind == "scattered" else self.rooms.draw
        loss = self._loss(stage.kind, draw(g, stage.batch, stage.frames), g)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), s.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(s, self.step)
        told = self.stepped(loss.item())
        self.optimiser.step()
        return told

    def _loss(self, kind: str, clips: Clips, g: torch.Generator) -> Tensor:
        """What the stages of this kind make smaller."""
        images = clips.image + self.settings.noise * torch.randn(clips.image.shape, generator=g)
        wanted = truth(clips, MIDDLE if kind in ("places", "room") else None)
        if kind == "places":
            patch = self.settings.model.patch_size
            return misplaced(self.places, seen_features(self.model, images[:, 0]), wanted, patch)
        shown = sorted(torch.randperm(images.shape[1], generator=g)[: self.settings.shown].tolist())
        return weighed(errors(rollout(self.model, images, shown), wanted, clips.image, shown))

    def evaluate(self) -> dict[str, float]:
        """Errors in rooms that nobody is trained on, entered beside the mean loss since the last time."""
        with torch.no_grad():
            return self.entered(scored(self.model, self._unseen))


def initialise(model: ReconModel) -> None:
    """Xavier with biases of 0, but the twin decoders' looks at each other begin as what they are for.

    State tokens look at the patches that stand where they stand: queries and keys are constant vectors, turned by
    their places. Image tokens look at state tokens that are like them: queries and keys are made alike, patches enter
    strongly, and blocks add little at first, or all tokens of an image would be like each other. What is read is handed
    on as it is. The pose memory begins quiet, or its pose token drowns what the image says; the camera begins at rest,
    or the quaternion's length grows before its direction is learnt. From nothing, a network of this size does not find
    that within an hour.
    Source: queries made like keys, Trockman and Kolter 2023, arXiv:2305.09828; the constant vector is ours.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.register_tokens.weight, std=1.5)
    nn.init.normal_(model.patch_embed.proj.weight, std=4 / model.patch_embed.proj.weight[0].numel() ** 0.5)
    nn.init.zeros_(model.patch_embed.proj.bias)
    memory = (*model.pose_retriever.read_blocks, *model.pose_retriever.write_blocks)
    for block in (*model.enc_blocks, *model.dec_blocks, *model.dec_blocks_state, *memory):
        for last in (block.attn.proj, block.mlp.fc2):
            last.weight.data.mul_(0.1)
    for block in memory:
        block.cross_attn.proj.weight.data.mul_(0.1)
    still = model.downstream_head.pose_head.mlp.fc2
    still.weight.data.mul_(0.1)
    still.bias.data[3] = 1.0
    for block in model.dec_blocks_state:
        for project, sign in ((block.cross_attn.projq, 1.0), (block.cross_attn.projk, -1.0)):
            nn.init.normal_(project.weight, std=0.02)
            quarters = project.bias.data.view(block.cross_attn.heads, 4, -1)
            quarters[..., 1:] = sign * LEVEL
            quarters[..., 0] = PLACE
        _hand_on(block.cross_attn)
    for block in model.dec_blocks:
        nn.init.orthogonal_(block.cross_attn.projq.weight, gain=2.0)
        block.cross_attn.projk.weight.data.copy_(block.cross_attn.projq.weight)
        _hand_on(block.cross_attn)


def shut(model: ReconModel) -> None:
    """Lets the pose memory stay as it begins: its write blocks add nothing, and are not trained."""
    for block in model.pose_retriever.write_blocks:
        block.requires_grad_(False)
        for last in (block.attn.proj, block.cross_attn.proj, block.mlp.fc2):
            last.weight.data.zero_()
            last.bias.data.zero_()


def _hand_on(attention: nn.Module) -> None:
    """Values and the last projection that together change nothing."""
    nn.init.orthogonal_(attention.projv.weight)
    attention.proj.weight.data.copy_(attention.projv.weight.mT)


def weighed(parts) -> Tensor:
    """The loss."""
    return sum(WEIGHTS[name] * x for name, x in parts._asdict().items())


def rate_at(s: ReconTrainSettings, step: int) -> float:
    """Learning rate: a cosine from each stage's to the next one's or 0, rising anew at each stage's beginning."""
    index, within = s.place(step)
    stage = s.stages[index]
    after = s.stages[index + 1].rate if index + 1 < len(s.stages) else 0.0
    rate = after + (stage.rate - after) * 0.5 * (1 + math.cos(math.pi * within / stage.steps))
    return rate * min(1.0, (within + 1) / max(1, s.warm_up))


def unseen(s: ReconTrainSettings) -> Clips:
    """Sequences that are not trained on, of the walks that are."""
    d = s.data
    wandering = round(d.wandering * s.evaluate_on)
    clips = [
        rendered(seed, d.frames, d.height, d.width, kind, d.known)
        for walk, count in zip(WALKS, (wandering, s.evaluate_on - wandering))
        for seed, kind in islice(seeds(UNSEEN, walk, d.frames, d.ahead_rad), count)
    ]
    return Clips(*(torch.cat(part) for part in list(zip(*clips))[:3]), clips[0].intrinsics)


def scored(model: ReconModel, clips: Clips) -> dict[str, float]:
    """Mean relative depth error, and pose errors of the frames after the first in metres and radians."""
    wanted, readout = truth(clips), rollout(model, clips.image)
    said = motion_from_quaternion(readout.pose[..., :3], readout.pose[..., 3:].roll(-1, -1))[:, 1:]
    apart = wanted.camera[:, 1:].mT[..., :3, :3] @ said[..., :3, :3]
    turn = torch.eye(4).repeat(*apart.shape[:2], 1, 1)
    turn[..., :3, :3] = apart
    return {
        "depth": ((readout.points_camera[..., 2] - clips.depth).abs() / clips.depth).mean().item(),
        "translation_m": (said[..., :3, 3] - wanted.camera[:, 1:, :3, 3]).norm(dim=-1).mean().item(),
        "rotation_rad": rotation_angle(turn).mean().item(),
    }


def _groups(model: nn.Module, decay: float) -> list[dict]:
    """Weight decay for matrices alone."""
    wide = [p for p in model.parameters() if p.ndim > 1]
    flat = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
