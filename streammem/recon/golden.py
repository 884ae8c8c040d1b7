"""Reference runs of the official code, with random weights: how far from them this library is, on this device.

A folder of golden runs holds `meta.json`, which describes each run, and the tensors of those that are present.

The image encoder rounds queries and keys to float16. A last bit that falls otherwise there moves a query by 1e-3 of
itself, so that the encoder sums as the reference did (encoder.PatchEmbed) or exactly (blocks.SelfAttention): with both,
tiny runs are within a tolerance of theirs end to end, 2e-6 of each tensor, and without 2e-5. A processor without vector
instructions of 256 bits sums otherwise and is 2e-5 off. What comes after the encoder has no such steps: where a run
stores the reference's features, it is also held to the tolerance on them, so that a miss says which of the two it is.
"""

import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from streammem import tree
from streammem.errors import CheckpointError, ConfigError
from streammem.recon.config import PRESETS
from streammem.recon.model import Proposal, ReconModel
from streammem.recon.state import ReconReadout, ReconState, View
from streammem.recon.update import Confidence, Replace

RULES = {"cut3r": Replace, "ttt3r": Confidence}
RELATIVE = {"tiny": 1e-5, "full": 2e-4}  # of every tensor, by its L2 norm: meta.json, suggested_tolerances
ABSOLUTE = {  # largest difference, by tensor; points of the full model only relatively, as expm1 makes outliers
    "tiny": {
        "state_after": 5e-5,
        "state_candidate": 5e-5,
        "camera_pose": 5e-5,
        "mem_after": 1e-4,
        "gate_logit_mean": 5e-5,
        "conf": 1e-4,
        "conf_self": 1e-4,
        "pts3d_in_other_view": 5e-4,
    },
    "full": {"state_after": 5e-4, "camera_pose": 5e-4, "gate_logit_mean": 1e-4},
}
GATE = 1e-5  # largest difference of the gate's logits on the reference's own features
GAINS = {"projections": 2.5, "outputs": 0.4}  # of the keyed initialisation
ONES = ("pose_token", "masked_img_token", "masked_ray_map_token", "register_tokens.weight")
ONES_OF_MEMORY = ("pose_retriever.mem", "pose_retriever.masked_token")


class Difference(NamedTuple):
    """How far one tensor of a run is from the reference."""

    tensor: str  # its name, and the norm
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; NaN never is."""
        return self.error <= self.tolerance


def runs(golden_dir: str | Path) -> list[str]:
    """Names of the runs that `meta.json` lists and whose tensors are there.

    Raises: CheckpointError where there is no meta.json.
    """
    folder = Path(golden_dir)
    return [name for name, about in _meta(folder)["runs"].items() if (folder / about["file"]).is_file()]


def run(name: str, golden_dir: str | Path, device: str | torch.device = "cpu") -> list[Difference]:
    """Replays a run with the keyed weights; the difference of each of its tensors.

    Raises: CheckpointError where the folder has no such run.
    """
    folder = Path(golden_dir)
    if name not in runs(folder):
        raise CheckpointError(f"no golden run {name!r} in {folder}; present: {', '.join(runs(folder))}")
    meta = _meta(folder)
    about = meta["runs"][name]
    model = keyed(about["model"], meta["seed"], device)
    given, wanted = inputs(folder, about["model"], device), load_file(folder / about["file"])
    if "enc_feat" not in wanted:
        return differences(replay(model, about, given), wanted, about)
    stages = replay(model, about, given, wanted["enc_feat"].to(device))
    found = [
        x._replace(tolerance=GATE) if x.tensor == "gate_logit_mean, largest" else x
        for x in differences(stages, wanted, about)
        if not x.tensor.startswith("enc_feat")
    ]
    whole = differences(replay(model, about, given), wanted, about)
    return found + [x._replace(tensor=f"{x.tensor}, end to end") for x in whole]


def keyed(preset: str, seed: int, device: str | torch.device = "cpu") -> ReconModel:
    """A model whose every weight is made from its own name.

    Raises: ConfigError where there is no such preset.
    """
    if preset not in PRESETS:
        raise ConfigError(f"no configuration {preset!r}; known: {', '.join(PRESETS)}")
    with torch.device("meta"):
        model = ReconModel(PRESETS[preset])
    weights = {key: keyed_weight(key, x.shape, seed).to(device) for key, x in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval()


def keyed_weight(key: str, shape: torch.Size, seed: int) -> Tensor:
    """The weight of this name: uniform numbers of a generator seeded by crc32(name) xor seed, scaled by kind."""
    for i in range(4):  # tied duplicates are made by the first name
        key = key.replace(f"scratch.layer_rn.{i}.", f"scratch.layer{i + 1}_rn.")
    random = np.random.RandomState((zlib.crc32(key.encode()) ^ seed) & 0xFFFFFFFF)
    u = random.random_sample(shape.numel()) * 2 - 1
    if len(shape) == 1:
        u = 1 + 0.2 * u if key.endswith(".weight") else 0.1 * u
    elif key not in ONES + ONES_OF_MEMORY:
        u = u * (_gain(key) * np.sqrt(3 / shape[1:].numel()))
    return torch.from_numpy(u.astype(np.float32).reshape(shape))


def inputs(folder: Path, model: str, device: str | torch.device) -> dict[str, Tensor]:
    """Images, and maps of rays where there are any, one a view."""
    family = "tiny" if model.startswith("tiny") else model.partition("_")[0]
    stored = load_file(folder / f"{family}.inputs.safetensors", device=str(device))
    image = (stored["img_u8"].float() / 255 - 0.5) / 0.5
    return {"image": image, **({"ray_map": stored["ray_map"]} if "ray_map" in stored else {})}


@torch.no_grad()
def replay(
    model: ReconModel, about: dict, given: dict[str, Tensor], features: Tensor | None = None
) -> dict[str, Tensor]:
    """Runs the views as the official entry point would; tensors by their golden names, stacked over frames.

    features: of all views, [T, N, E], instead of the encoder's.
    """
    rule = RULES[about["rule"]]()
    model.update = Confidence()  # always asked, so that its logits can be compared where the rule ignores them
    start = state = model.init_state(1)
    model.masked_tokens = whole = about["api"].startswith("forward") and "recurrent" not in about["api"]
    frames = []
    for i, view in enumerate(_views(about, given)):
        seen, size = model.features(view) if features is None else features[i : i + 1], view.image.shape[-2:]
        proposal = model.propose(state, seen, size, state.frames == 0)
        updated = rule.update((), state.tokens, proposal.candidate, proposal.evidence)
        new = ReconState(updated.tokens, proposal.pose_memory, state.frames + 1, ())
        new = tree.where(view.has_image & about["update"][i], new, state._replace(frames=state.frames + 1))
        if about["reset"][i]:  # acts after its frame; on the whole-sequence path what follows is no first view
            new = start._replace(frames=new.frames if whole else start.frames)
        readout = model.read(proposal.layers, size, updated.gate)
        frames.append(_named(proposal, new, readout))
        state = new
    made = {key: torch.cat([frame[key] for frame in frames]) for key in frames[0]}
    return {**made, "state_init": start.tokens, "mem_init": start.pose_memory}


def differences(made: dict[str, Tensor], wanted: dict[str, Tensor], about: dict) -> list[Difference]:
    """Relative L2 of every tensor that both have, and the largest difference of those that have a bound for it."""
    size = about["model"].partition("_")[0].rstrip("0123456789")
    found = []
    for key in sorted(made.keys() & wanted.keys()):
        ours, theirs = subsampled(key, made[key].cpu(), about).double(), wanted[key].double()
        apart = ours - theirs
        found.append(Difference(f"{key}, relative L2", (apart.norm() / theirs.norm()).item(), RELATIVE[size]))
        if key in ABSOLUTE[size]:
            found.append(Difference(f"{key}, largest", apart.abs().max().item(), ABSOLUTE[size][key]))
    return found


def subsampled(key: str, x: Tensor, about: dict) -> Tensor:
    """The part of a tensor that a run stores: of large models some pixels and some tokens."""
    if "pixel_subsample" in about and key in ("pts3d_in_self_view", "pts3d_in_other_view", "conf", "conf_self", "rgb"):
        return x[:, 2::4, 2::4]
    if "token_subsample" in about and key in ("state_after", "state_init", "mem_after", "mem_init"):
        return x[:, 0::16]
    return x


def _views(about: dict, given: dict[str, Tensor]):
    rays = "ray_mask" in about
    for i, index in enumerate(about["views"]):
        image = given["image"][index : index + 1]
        yes = torch.ones(1, dtype=torch.bool, device=image.device)
        has_image, has_rays = (yes & about[mask][i] if rays else yes for mask in ("img_mask", "ray_mask"))
        ray_map = given["ray_map"][index : index + 1] if rays else None
        yield View(image, ray_map, has_image, has_rays, yes, ~yes)


def _named(proposal: Proposal, state: ReconState, readout: ReconReadout) -> dict[str, Tensor]:
    return {
        "pts3d_in_self_view": readout.points_camera,
        "conf_self": readout.confidence_camera,
        "pts3d_in_other_view": readout.points_world,
        "conf": readout.confidence_world,
        "rgb": readout.colour,
        "camera_pose": readout.pose,
        "state_after": state.tokens,
        "state_candidate": proposal.candidate,
        "mem_after": state.pose_memory,
        "pose_token_in": proposal.pose_token,
        "enc_feat": proposal.features,
        "dec_last": torch.cat([proposal.layers.pose, proposal.layers.last], 1),
        "gate_logit_mean": proposal.evidence.logit,
        "gate_if_used": proposal.evidence.logit.sigmoid(),
    }


def _gain(key: str) -> float:
    if key.startswith("dec_blocks_state.") and key.endswith(("cross_attn.projq.weight", "cross_attn.projk.weight")):
        return GAINS["projections"]
    if key.startswith("downstream_head.") and key.endswith(("proj.fc2.weight", ".head.4.weight")):
        return GAINS["outputs"]
    return 1.0


def _meta(folder: Path) -> dict:
    path = folder / "meta.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; wanted a folder of golden runs")
    return json.loads(path.read_text())
