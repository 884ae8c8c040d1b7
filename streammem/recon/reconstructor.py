"""A colour camera as a depth camera: the network's stream, its chunks in one world, its pictures as posed depth."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import CheckpointError, ConfigError, ShapeError
from streammem.geometry import Camera, motion_from_quaternion, transform
from streammem.recon import similarity
from streammem.recon.align import ALIGNED, Robust
from streammem.recon.anchor import Anchor, anchor, anchored
from streammem.recon.intrinsics import Lens, Median
from streammem.recon.model import ReconModel
from streammem.recon.preprocess import Fit, fit, prepared
from streammem.recon.rays import ray_map
from streammem.recon.ring import Ring
from streammem.recon.similarity import Similarity
from streammem.recon.state import ReconReadout
from streammem.recon.trust import Trust
from streammem.stream import Stream
from streammem.types import Frame


class Chunks(NamedTuple):
    """What a stream carries beside the network's state."""

    world: Similarity  # the first chunk's world from this chunk's
    lens: Ring  # the last focal lengths
    trust: Ring  # what was confident lately
    anchor: Anchor  # the world of measured poses, where frames bring some
    frames: Tensor  # [B] int64, views since the stream started
    resets: Tensor  # [B] int64
    unaligned: Tensor  # [B] int64, resets whose chunks could only be chained by their poses


class Seen(NamedTuple):
    """One view, in the world of the stream's first chunk, or of the poses that frames bring.

    Units: those of the weights, or of these poses.
    """

    frame: Frame  # the network's picture with depth where it is to be written, intrinsics and pose
    points: Tensor  # [B, h, w, 3] in the world
    confidence: Tensor  # [B, h, w], at least 1
    intrinsics: Tensor  # [B, 3, 3] of the camera's own picture
    scale: Tensor  # [B] float64, of this chunk
    gate: Tensor  # [B, S] share of each token that is written
    resets: Tensor  # [B] int64, so far
    unaligned: Tensor  # [B] int64, of them

    @property
    def usable(self) -> Tensor:
        """Whether the view can be believed at all, [B] bool."""
        return self.frame.valid


class Reconstructor:
    """Frames of colour in, posed depth frames out; one state of fixed size.

    >>> eye = Reconstructor(model)
    >>> for frame in source:
    ...     seen = eye.step(frame)
    ...     mapper.step(seen.frame)

    model: the network, on its device. lens: how intrinsics come about; None: the frames bring them.
    trust: which pixels are to be written.
    reset_every: frames after which the network starts over, its new world aligned with the old one on the frame that
        both see; 0: never. align: how.

    A frame that brings a pose is where it says, and tells the world's scale; one that brings none is where the network
    says, from there. All frames of a stream have one size. Nothing is differentiated.
    Raises: ConfigError for a negative reset_every; ShapeError at a frame of another size.
    """

    def __init__(
        self,
        model: ReconModel,
        batch: int = 1,
        lens: Lens | None = Median(),
        trust: Trust = Trust(),
        reset_every: int = 0,
        align: Robust = Robust(),
    ):
        if reset_every < 0 or reset_every == 1:
            raise ConfigError(f"reset_every is {reset_every}; wanted 0 (never) or at least 2 frames")
        self.model, self.lens, self.trust, self.align, self.reset_every = model, lens, trust, align, reset_every
        self.device = model.pose_token.device
        self._stream = Stream(model, batch)
        world = similarity.identity(batch, self.device)
        none = torch.zeros(batch, dtype=torch.int64, device=self.device)
        rings = (Median(1) if lens is None else lens).init(batch, self.device), trust.init(batch, self.device)
        self._first = Chunks(world, *rings, anchor(batch, self.device), none, none, none)
        self._now, self._offered = self._first, 0
        self.fit: Fit | None = None

    def __repr__(self) -> str:
        told = f"update={self.model.update}, lens={self.lens}, trust={self.trust}"
        return f"Reconstructor({told}, reset_every={self.reset_every}, align={self.align})"

    @property
    def nbytes(self) -> int:
        """Bytes of the state; fixed."""
        return tree.nbytes(self._stream.snapshot()) + tree.nbytes(self._now)

    @torch.no_grad()
    def step(self, frame: Frame) -> Seen:
        """Writes a frame to the network's state and says what it sees."""
        small = self._prepared(frame)
        before = tree.where(small.reset, self._first, self._now)
        readout = self._stream.step(small)
        self._offered += 1
        self._now, seen = self._seen(small, before, readout)
        if self.reset_every and self._offered % self.reset_every == 0:
            self._now = self._turned(small, readout, self._now)
        return seen

    @torch.no_grad()
    def peek(self, frame: Frame) -> Seen:
        """What `step` would say; writes nothing. In a state that was loaded, this finds where a frame was taken."""
        small = self._prepared(frame)
        return self._seen(small, tree.where(small.reset, self._first, self._now), self._stream.peek(small))[1]

    def revisit(self, frames: Iterable[Frame]) -> Iterator[Seen]:
        """What the state, learnt from a whole recording, now says of each of its frames; nothing is written."""
        for frame in frames:
            yield self.peek(frame)

    @torch.no_grad()
    def query(self, camera: Camera) -> ReconReadout:
        """What the state holds where nobody has looked from; points and pose in the stream's world. Writes nothing.

        camera: of the network's picture, its sides whole patches, at a pose [4, 4] of that world.
        Source: CUT3R, section 3.3 of arXiv:2501.12387.
        """
        world, batch = _measured(self._now), len(self._now.frames)
        pose = camera.world_from_camera.to(self.device, torch.float64).expand(batch, 4, 4)
        rotation = world.rotation.mT @ pose[:, :3, :3]
        moved = (world.rotation.mT @ (pose[:, :3, 3] - world.translation)[..., None])[..., 0] / world.scale[:, None]
        inside = pose.clone()
        inside[:, :3, :3], inside[:, :3, 3] = rotation, moved
        K = camera.intrinsics.to(self.device, torch.float32).expand(batch, 3, 3)
        readout = self.model.query(self._stream.snapshot().inner, ray_map(K, inside, camera.height, camera.width))
        scale = world.scale.float()[:, None, None, None]
        return readout._replace(
            points_camera=readout.points_camera * scale, points_world=world.points(readout.points_world)
        )

    def health(self) -> dict[str, list[int]]:
        """Counts by stream since it started; waits for the device."""
        names = ("frames", "resets", "unaligned")
        network = self._stream.health()
        counts = {name: getattr(self._now, name).tolist() for name in names}
        return counts | {f"network_{name}": network[name] for name in ("skipped", "nonfinite")}

    def state_tree(self) -> dict[str, Tensor]:
        """Everything that `adopt` needs, by name."""
        size = self.fit.input_size if self.fit else (0, 0)
        named = {f"network.{name}": x for name, x in tree.to_dict(self._stream.snapshot()).items()}
        named |= {f"chunks.{name}": x for name, x in tree.to_dict(self._now).items()}
        return named | {"offered": torch.tensor([self._offered, *size])}

    def adopt(self, named: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_tree` gave.

        Raises: CheckpointError, with the state as it was, where it is of another network, rule or batch.
        """
        try:
            parts = [
                {name.removeprefix(head): x.to(self.device) for name, x in named.items() if name.startswith(head)}
                for head in ("network.", "chunks.")
            ]
            network = tree.from_dict(self._stream.snapshot(), parts[0])
            chunks = tree.from_dict(self._now, parts[1])
            offered, height, width = named["offered"].tolist()
        except (KeyError, ShapeError, ValueError) as error:
            raise CheckpointError(f"the state is not of this network: {error}") from error
        self._stream.restore(network)
        self._now, self._offered = chunks, offered
        self.fit = self._fit(height, width) if height else None

    def _prepared(self, frame: Frame) -> Frame:
        if self.fit is None:
            self.fit = self._fit(*frame.image.shape[-2:])
        if tuple(frame.image.shape[-2:]) != self.fit.input_size:
            raise ShapeError(f"image is {list(frame.image.shape)}; wanted [B, 3, {self.fit.input_size}] as before")
        if self.lens is None and frame.intrinsics is None:
            raise ShapeError("the frame has no intrinsics, and no lens is to find them; wanted one or the other")
        return tree.to(prepared(frame, self.fit), self.device)

    def _fit(self, height: int, width: int) -> Fit:
        config = self.model.config
        return fit(height, width, max(config.image_size), config.patch_size)

    def _seen(self, frame: Frame, old: Chunks, readout: ReconReadout) -> tuple[Chunks, Seen]:
        """A view as a posed depth frame, and what the stream carries after it; invalid views leave no trace."""
        now = old
        lens, K = (now.lens, frame.intrinsics) if self.lens is None else self.lens.step(now.lens, readout.points_camera)
        trust, written = self.trust.step(now.trust, readout.confidence_camera, now.frames)
        camera = camera_pose(readout)
        if frame.world_from_camera is not None:
            now = now._replace(anchor=anchored(now.anchor, now.world.poses(camera), frame.world_from_camera.double()))
        world = _measured(now)
        scale, pose = world.scale, world.poses(camera)
        depth = readout.points_camera[..., 2] * scale.float()[:, None, None]
        sound = pose.isfinite().all(-1).all(-1) & K.isfinite().all(-1).all(-1)
        depth = torch.where(written & depth.isfinite() & (depth > 0), depth, 0.0)
        K = torch.where(sound[:, None, None], K, torch.eye(3, device=K.device))
        points = world.points(transform(camera, readout.points_camera))
        valid = frame.valid & sound
        new = now._replace(lens=lens, trust=trust, frames=now.frames + 1)
        new = tree.where(valid, new, old._replace(frames=old.frames + 1))
        posed = frame._replace(depth=depth, intrinsics=K, world_from_camera=pose, valid=valid)
        K = self.fit.intrinsics_to_input(K)
        told = (points, readout.confidence_camera, K, scale, readout.gate, now.resets, now.unaligned)
        return new, Seen(posed, *told)

    def _turned(self, frame: Frame, old: ReconReadout, now: Chunks) -> Chunks:
        """Starts valid streams over at a frame that they have just seen, and finds their new world in the old one."""
        self._stream.reset(frame.valid)
        new = self._stream.step(frame._replace(reset=torch.zeros_like(frame.reset)))
        cameras = camera_pose(old), camera_pose(new)
        source, target = (
            transform(camera, readout.points_camera).flatten(1, 2) for camera, readout in zip(cameras[::-1], (new, old))
        )
        confidence = (old.confidence_camera * new.confidence_camera).sqrt().flatten(1)
        found = self.align(source, target, confidence)
        aligned = found.status_code == ALIGNED
        step = tree.where(aligned, found.similarity, similarity.between(*cameras))
        turned = now._replace(world=now.world.after(step), resets=now.resets + 1, unaligned=now.unaligned + ~aligned)
        finite = turned.world.points(torch.ones_like(source[:, :1])).isfinite().flatten(1).all(1)
        return tree.where(finite & frame.valid, turned, now)


def _measured(now: Chunks) -> Similarity:
    """From the chunk's world to the one that the stream is told in."""
    return now.anchor.similarity.after(now.world)


def camera_pose(readout: ReconReadout) -> Tensor:
    """The camera in its chunk's world, [B, 4, 4] float64, of the seven numbers that the network gives."""
    translation, wxyz = readout.pose.double().split([3, 4], -1)
    return motion_from_quaternion(translation, (wxyz / wxyz.norm(dim=-1, keepdim=True)).roll(-1, -1))
