"""Mapper: one live depth stream, one bounded map. Holds the state so that its caller need not."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import shapes, store, tree
from streammem.geometry import Camera, orthonormalise
from streammem.mapping import mesh as surfaces
from streammem.mapping import saved, verdict
from streammem.mapping.admission import admit, size_of
from streammem.mapping.field import MapUpdate, commit_, propose
from streammem.mapping.frames import Shot, known_depth
from streammem.mapping.keys import Lattice
from streammem.mapping.mesh import Blocks, Mesh, Points
from streammem.mapping.odometry import Reading
from streammem.mapping.raycast import View, raycast
from streammem.mapping.read import Field, gradient, read
from streammem.mapping.readout import (
    BLIND,
    GIVEN,
    NONFINITE,
    REASONS,
    UNPOSED,
    UNUSABLE,
    MapHealth,
    MapReadout,
    healthy,
)
from streammem.mapping.residency import Host
from streammem.mapping.retention import present
from streammem.mapping.setting import MapSettings
from streammem.mapping.state import ROWS, MapState, blocks_within, empty
from streammem.mapping.table import table
from streammem.mapping.track import TrackState
from streammem.types import Frame

SCHEMA = 1  # of the saved state; raised when its layout changes
LEAST_ROWS = 512  # that a step has room for: more than it wants, for they are worked through whether used or not


class Snapshot(NamedTuple):
    """A copy of everything a mapper remembers."""

    map: MapState
    track: TrackState | None
    health: MapHealth
    host: dict
    rows: int
    posed: bool


class Mapper:
    """Learns a scene from depth frames, one by one, in a state of fixed size.

    >>> mapper = Mapper(MapSettings(voxel_size_m=0.02))
    >>> for frame in source:
    ...     readout = mapper.step(frame)
    >>> mapper.raycast(camera).depth, mapper.mesh(), mapper.sdf(points)

    A frame that brings a pose is written with it; one that brings none is tracked against the map. A frame that is
    invalid, lost or not finite writes nothing, and is counted. One camera a mapper: frames have B = 1.
    """

    def __init__(self, settings: MapSettings = MapSettings(), device="cpu"):
        self.settings, self.device = settings, torch.device(device)
        self._lattice = Lattice(settings.voxel_size_m, settings.window_blocks)
        self._blocks = blocks_within(settings.max_bytes, self._lattice)
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self._state = empty(self._lattice, self._blocks, self.device)
        self._health = healthy(self.device)
        self._track: TrackState | None = None
        reserve = min(self.settings.write.most_new_blocks, self._blocks // 4)
        self._host = Host(self._lattice, reserve, self.settings.max_depth_m)
        self._rows = min(LEAST_ROWS, self._blocks)
        self._posed = False

    @property
    def nbytes(self) -> int:
        """Bytes of the resident state; fixed."""
        return tree.nbytes(self._state)

    @torch.no_grad()
    def step(self, frame: Frame) -> MapReadout:
        """Tracks the frame if it brings no pose, writes it if its pose is known, and says how it went."""
        admit(frame, None if self._track is None else self._track.last.depth.shape[1:], self.settings.track)
        if bool(frame.reset):
            self.reset()
        shot, track, readout = self._look(frame)
        self._host.settle(self._state, shot.world_from_camera)
        update, readout, rows, wanted = self._propose(shot, readout)
        commit_(self._state, update)
        self._track, self._posed = track, self._posed or _brings_pose(frame)
        self._health = _counted(self._health, readout, update, rows)
        self._rows = rows if 0.65 * rows < wanted < 0.95 * rows else self._room_for(wanted)
        return readout

    @torch.no_grad()
    def peek(self, frame: Frame) -> MapReadout:
        """The readout that `step` would return; writes nothing."""
        admit(frame, None if self._track is None else self._track.last.depth.shape[1:], self.settings.track)
        shot, _, readout = self._look(frame)
        return self._propose(shot, readout)[1]

    @torch.no_grad()
    def raycast(self, camera: Camera, time_s: float | None = None) -> View:
        """What a camera would see of the map, now or as of another time: depth, normal, colour and variance.

        time_s: on the clock of the frames; None is the time of the newest. Recorded poses wander, and with them the
        surfaces: what was seen near that time is read where it was then, all else at its average.

        Shapes: as `raycast.View`. Units: metres, and 1 for colours in [0, 1].
        Raises: nothing; pixels without a surface have depth 0 and variance inf.
        """
        pose = camera.world_from_camera.to(self.device, torch.float32)
        intrinsics = camera.intrinsics.to(self.device, torch.float32)
        return raycast(self._field(time_s), intrinsics, pose, camera.height, camera.width, self.settings.cast)

    @torch.no_grad()
    def sdf(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distance (m, positive in free space) and its variance (m^2; inf = never seen) at points [P, 3]."""
        shapes.check(points, "P 3", "points")
        there = read(self._field(), points.to(self.device, torch.float32))
        return there.distance, torch.where(there.known, 1 / there.precision, float("inf"))

    def mesh(self) -> Mesh:
        """The whole map as triangles, the blocks on the host included; waits for the device."""
        return surfaces.mesh(self._lattice, self._all_blocks(), self.settings.write.known_precision)

    def points(self) -> Points:
        """The whole map as points on its surface, the blocks on the host included; waits for the device."""
        return surfaces.surface_points(self._lattice, self._all_blocks(), self.settings.write.known_precision)

    def health(self) -> dict[str, int]:
        """Counts since the map was made or reset; waits for the device."""
        counts = {name: int(count) for name, count in self._health._asdict().items()}
        blocks = {"resident_blocks": int(self._state.live.sum()), "host_blocks": len(self._host.rows)}
        return counts | blocks | self._host.moved._asdict()

    def snapshot(self) -> Snapshot:
        """A copy of everything, for `restore`."""
        track = None if self._track is None else tree.clone(self._track)
        host = {key: tuple(row.clone() for row in rows) for key, rows in self._host.rows.items()}
        return Snapshot(tree.clone(self._state), track, tree.clone(self._health), host, self._rows, self._posed)

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot of a mapper with the same settings.

        Raises: ShapeError where the snapshot is of another size, with the state left as it was.
        """
        tree.from_dict(self._state, tree.to_dict(snapshot.map))
        tree.copy_(self._state, snapshot.map)
        self._track = None if snapshot.track is None else tree.clone(snapshot.track)
        self._health = tree.clone(snapshot.health)
        self._host.rows = {key: tuple(row.clone() for row in rows) for key, rows in snapshot.host.items()}
        self._rows, self._posed = snapshot.rows, snapshot.posed

    def save(self, path, notes: dict[str, str] | None = None) -> None:
        """Writes the state to one crash-safe file; only blocks that hold something are in it."""
        store.save(path, self.state_tree(), schema=SCHEMA, rule=repr(self.settings), notes=notes)

    @classmethod
    def load(cls, path, settings: MapSettings = MapSettings(), device="cpu") -> tuple["Mapper", dict[str, str]]:
        """A mapper that goes on where the file was written, and the notes that were saved with it.

        Raises: CheckpointError where the file is damaged, foreign, or of a map with other settings.
        """
        stored = store.load(path, schema=SCHEMA, rule=repr(settings))
        mapper = cls(settings, device)
        mapper._adopt(stored.tensors)
        return mapper, stored.notes

    def state_tree(self) -> dict[str, Tensor]:
        """Everything that `load` needs, by name, as tensors; rows of empty slots are left out."""
        return saved.portable(
            self._lattice, self._state, self._host, self._health, self._track, self._rows, self._posed
        )

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        kept = saved.restored(tensors, self._lattice, self._state, self._host, self._health, self.settings.track)
        self._state, self._health, self._track, self._rows, self._posed = kept

    def _look(self, frame: Frame) -> tuple[Shot, TrackState | None, MapReadout]:
        """The frame with its pose, given or found; the tracker's state after it; and what is known so far."""
        depth = known_depth(
            frame.depth[0].to(self.device, torch.float32), self.settings.near_m, self.settings.max_depth_m
        )
        track, blind = self._track, ~(depth > 0).any()
        usable = frame.valid[0].to(self.device) & ~blind
        if _brings_pose(frame):
            pose = orthonormalise(frame.world_from_camera[0].to(self.device, torch.float64))
            status, reason = _code(verdict.TRACKED, depth), _code(REASONS.index(GIVEN), depth)
        elif self._posed:
            pose = torch.eye(4, dtype=torch.float64, device=self.device)
            status, reason = _code(verdict.SKIPPED, depth), _code(REASONS.index(UNPOSED), depth)
        else:
            if track is None:
                track = self.settings.track.init(*size_of(frame), device=self.device)
            track, found = self.settings.track(track, _on(frame, self.device, depth, usable), self._reading())
            pose, status, reason = found.world_from_camera, found.status, found.reason
        reason = torch.where(blind, REASONS.index(BLIND), reason)
        reason = torch.where(frame.valid[0].to(self.device), reason, REASONS.index(UNUSABLE))
        status = torch.where(usable, status, verdict.SKIPPED)
        trusted = verdict.writes(status, reason)
        intrinsics = frame.intrinsics[0].to(self.device, torch.float32)
        image = frame.image[0].to(self.device, torch.float32).nan_to_num()
        shot = Shot(image, depth, intrinsics, pose.float(), frame.time_s[0].to(self.device), trusted)
        none = torch.zeros(1, device=self.device)
        return shot, track, MapReadout(status[None], reason[None], pose[None], none)

    def _room_for(self, wanted: int) -> int:
        """Rows for a step that wants so many: a few more, in steps."""
        return min(max(LEAST_ROWS, (wanted * 6 // 5 // 128 + 1) * 128), self._blocks)

    def _propose(self, shot: Shot, readout: MapReadout) -> tuple[MapUpdate, MapReadout, int, int]:
        """The update and the readout, the rows there was room for, and those that were wanted: waits for the device."""
        rows = self._rows
        while True:
            update = propose(self._lattice, self.settings.write, self._state, shot, rows)
            wanted = int(update.wanted)
            if wanted <= rows or rows == self._blocks:
                break
            rows = self._room_for(wanted)  # a frame is written whole
        refused = shot.trusted & ~update.finite
        readout = readout._replace(
            status_code=torch.where(refused, verdict.SKIPPED, readout.status_code),
            reason_code=torch.where(refused, REASONS.index(NONFINITE), readout.reason_code),
            confidence=torch.where(update.kept, update.confidence, 0)[None],
        )
        return update, readout, rows, wanted

    @property
    def _slots(self) -> int:
        """How many of the first slots hold all live blocks, and a few more."""
        live = self._state.live.nonzero()
        return min((int(live[-1]) // 256 + 1) * 256 if len(live) else 256, self._blocks)

    def _field(self, time_s: float | None = None) -> Field:
        how, state = self.settings, self._state
        now_s = state.now_s if time_s is None else (time_s - state.start_s).float()
        now = table(self._lattice, how.write.retention, state, now_s, self._slots)
        return Field(self._lattice, now, how.write.known_precision, how.known_share, how.max_depth_m * 1.1)

    def _reading(self) -> Callable[[Tensor], Reading]:
        """The map as the tracker asks for it, at points [P, 3]."""
        field = self._field()

        def ask(points: Tensor) -> Reading:
            there = read(field, points.to(torch.float32))
            return Reading(there.distance, gradient(field, there), there.precision)

        return ask

    def _all_blocks(self) -> Blocks:
        """Rows of the buffers and of the host, in the host's memory."""
        names = ("block", *ROWS)
        live = self._state.live
        rows = [getattr(self._state, name)[live].cpu() for name in names]
        if self._host.rows:
            away = [
                torch.tensor(list(self._host.rows), dtype=torch.int32),
                *map(torch.stack, zip(*self._host.rows.values())),
            ]
            rows = [torch.cat(pair) for pair in zip(rows, away)]
        block, field, wander, colour, seen_s, _ = rows
        now = present(self.settings.write.retention, field, wander, seen_s, self._state.now_s.cpu())
        return Blocks(block, now.value, now.precision, colour)


def _brings_pose(frame: Frame) -> bool:
    return frame.world_from_camera is not None and bool(frame.world_from_camera.isfinite().all())


def _code(value: int, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.int64, device=like.device)


def _on(frame: Frame, device, depth: Tensor, usable: Tensor) -> Frame:
    return tree.to(frame, device)._replace(depth=depth[None], valid=usable[None])


def _counted(health: MapHealth, readout: MapReadout, update: MapUpdate, rows: int) -> MapHealth:
    status = readout.status_code[0]
    return MapHealth(
        written=health.written + update.kept,
        tracked=health.tracked + (status == verdict.TRACKED),
        weak=health.weak + (status == verdict.WEAK),
        lost=health.lost + (status == verdict.LOST),
        skipped=health.skipped + (status == verdict.SKIPPED),
        nonfinite=health.nonfinite + ~update.finite,
        refused_blocks=health.refused_blocks + torch.where(update.kept, update.refused, 0),
        crowded=health.crowded + (update.wanted > rows),
    )
