"""A map's state in the form of files: live rows only, resident or not, and whatever else is needed to go on."""

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import CheckpointError
from streammem.mapping.keys import Lattice
from streammem.mapping.readout import MapHealth
from streammem.mapping.residency import Host, Moved
from streammem.mapping.state import ROWS, MapState
from streammem.mapping.track import Tracker, TrackState

SCALARS = ("start_s", "now_s", "frames")


def portable(
    lattice: Lattice, state: MapState, host: Host, health: MapHealth, track: TrackState | None, rows: int, posed: bool
) -> dict[str, Tensor]:
    """Everything, by name. Slots are put into a fixed order, which changes no number: equal maps make equal files."""
    slot = state.live.nonzero()[:, 0]
    slot = slot[lattice.code_of_block(*state.block[slot].unbind(-1)).argsort()]
    named = {f"resident.{name}": getattr(state, name)[slot] for name in ("block", *ROWS)}
    away = sorted(host.rows)
    named["host.block"] = torch.tensor(away, dtype=torch.int32).view(-1, 3)
    for name, parts in zip(ROWS, zip(*(host.rows[key] for key in away))):
        named[f"host.{name}"] = torch.stack(parts)
    named |= {f"map.{name}": getattr(state, name) for name in SCALARS}
    cell = state.passed[:-1].nonzero()[:, 0]
    named |= {"map.passed_cell": cell, "map.passed": state.passed[cell]}
    named |= {f"health.{name}": count for name, count in health._asdict().items()}
    named["runner"] = torch.tensor([rows, posed, *host.moved])
    if track is not None:
        named["track.size"] = torch.tensor(track.last.depth.shape[1:])
        named |= {f"track.{name}": part for name, part in tree.to_dict(track).items()}
    return named


def restored(
    named: dict[str, Tensor], lattice: Lattice, state: MapState, host: Host, health: MapHealth, tracker: Tracker
) -> tuple[MapState, MapHealth, TrackState | None, int, bool]:
    """Puts what `portable` gave into an empty state of a device; the state's buffers and the host's rows are filled.

    Raises: CheckpointError where the tensors are not those of a map.
    """
    device = state.live.device
    try:
        block = named["resident.block"].to(device)
        slot = torch.arange(len(block), device=device)
        if len(block) >= len(state.live):
            raise CheckpointError(
                f"the file holds {len(block)} resident blocks; wanted at most {len(state.live) - 1}: raise max_bytes"
            )
        state.block[slot] = block
        for name in ROWS:
            getattr(state, name)[slot] = named[f"resident.{name}"].to(device)
        state.live[slot] = True
        state.directory[lattice.cell_of_block(block)] = slot.int()
        for name in SCALARS:
            getattr(state, name).copy_(named[f"map.{name}"])
        state.passed[named["map.passed_cell"].to(device)] = named["map.passed"].to(device)
        away = [tuple(key) for key in named["host.block"].tolist()]
        host.rows = {key: tuple(named[f"host.{name}"][i].clone() for name in ROWS) for i, key in enumerate(away)}
        rows, posed, *moved = named["runner"].tolist()
        host.moved = Moved(*moved)
        health = MapHealth(*(named[f"health.{name}"].to(device) for name in MapHealth._fields))
        track = None
        if "track.size" in named:
            like = tracker.init(*named["track.size"].tolist(), device=device)
            parts = {
                name.removeprefix("track."): part.to(device)
                for name, part in named.items()
                if name.startswith("track.")
            }
            parts.pop("size")
            track = tree.from_dict(like, parts)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the file's tensors are not a map's: {error}; wanted a file that Mapper.save wrote"
        ) from error
    return state, health, track, rows, bool(posed)
