"""The network against reference runs of the official code, and proof that wrong gates would be noticed."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file

from streammem.errors import CheckpointError
from streammem.recon import blocks, golden
from streammem.recon.config import PRESETS
from streammem.recon.model import ReconModel
from streammem.recon.update import Confidence, Replace
from streammem.stream import Stream
from streammem.types import Frame

GOLDEN = ROOT.parent / "shared" / "golden"
RUNS = golden.runs(GOLDEN) if GOLDEN.is_dir() else []
TINY, FULL = ([name for name in RUNS if name.startswith(size)] for size in ("tiny", "full"))
CHECKPOINTS = {"cut3r_512_dpt_4_64": "full512_dpt", "cut3r_224_linear_4": "full224_linear"}
GATED = "tiny_linear.ttt3r"


@pytest.fixture(scope="module")
def folder() -> Path:
    if not GOLDEN.is_dir():
        pytest.skip("no reference runs: ../shared/golden does not exist beside the project")
    return GOLDEN


@pytest.mark.parametrize("name", TINY)
def test_reference_run(name):
    found = golden.run(name, GOLDEN)
    assert len(found) > 20 and [x for x in found if not x.ok] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_reference_run_at_full_size(name):
    found = golden.run(name, GOLDEN)
    assert len(found) > 10 and [x for x in found if not x.ok] == []


def test_the_tolerances_are_those_of_the_reference(folder):
    said = json.loads((folder / "meta.json").read_text())["suggested_tolerances"]
    assert "relative L2 per tensor <= 1e-5" in said["tiny"] and golden.RELATIVE["tiny"] == 1e-5
    assert "state 5e-5, pose 5e-5, memory 1e-4, gate logit 5e-5, conf 1e-4, pts 5e-4" in said["tiny"]
    assert golden.GATE == 1e-5
    assert "relative L2 per tensor <= 2e-4" in said["full"] and golden.RELATIVE["full"] == 2e-4


def test_gates_are_met_to_the_fifth_digit(folder):
    found = {x.tensor: x for x in golden.run(GATED, folder)}
    assert found["gate_logit_mean, largest"].error <= 1e-5 == found["gate_logit_mean, largest"].tolerance


WRONG = {
    "post-softmax": lambda q, k: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).mean((1, 3)),
    "no scale": lambda q, k: (q @ k.mT).mean((1, 3)),
    "sum over tokens": lambda q, k: (q @ k.mT * q.shape[-1] ** -0.5).sum(3).mean(1),
    "without the pose token": lambda q, k: (q @ k[:, :, 1:].mT * q.shape[-1] ** -0.5).mean((1, 3)),
    "one head": lambda q, k: (q @ k.mT * q.shape[-1] ** -0.5)[:, 0].mean(2),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gate_is_noticed(folder, monkeypatch, wrong):
    monkeypatch.setattr(blocks, "mean_logit", WRONG[wrong])
    missed = {x.tensor: x for x in golden.run(GATED, folder) if not x.ok}
    assert missed["gate_logit_mean, largest"].error > 1000 * golden.GATE
    assert "state_after, largest" in missed and "state_after, relative L2, end to end" in missed


def test_a_gate_of_the_last_layer_only_is_noticed(folder, monkeypatch):
    decode = golden.ReconModel.propose

    def last_only(self, *arguments, **named):
        depth, mean = self.config.dec_depth, []
        whole = blocks.mean_logit
        monkeypatch.setattr(blocks, "mean_logit", lambda q, k: mean.append(whole(q, k)) or whole(q, k))
        found = decode(self, *arguments, **named)
        monkeypatch.setattr(blocks, "mean_logit", whole)
        return found._replace(evidence=found.evidence._replace(logit=mean[depth - 1]))

    monkeypatch.setattr(golden.ReconModel, "propose", last_only)
    missed = {x.tensor for x in golden.run(GATED, folder) if not x.ok}
    assert {"gate_logit_mean, largest", "state_after, largest"} <= missed


def test_the_mean_of_the_official_maps_is_the_official_gate(folder):
    stored = load_file(folder / f"{GATED}.safetensors")
    for frame in (0, 1):
        maps = torch.stack([stored[f"debug.frame{frame}.state_cross_logits.{layer}"] for layer in range(4)])
        wanted = stored["gate_logit_mean"][frame]
        torch.testing.assert_close(maps.double().mean((0, 2, 4))[0].float(), wanted, rtol=0, atol=1e-6)
        assert (maps.softmax(-1).mean((0, 2, 4))[0] - wanted).abs().max() > 0.1


def test_another_count_of_heads_in_the_state_is_noticed(folder, monkeypatch):
    missed(monkeypatch, folder, state_dec_num_heads=4)


def test_leaving_the_rounding_out_is_noticed(folder, monkeypatch):
    assert "enc_feat, relative L2, end to end" in missed(monkeypatch, folder, rope_half_rounding=False)


def missed(monkeypatch, folder, **changed) -> set[str]:
    """What a run misses with another configuration; there must be something."""
    monkeypatch.setitem(golden.PRESETS, "tiny_linear", dataclasses.replace(PRESETS["tiny_linear"], **changed))
    found = {x.tensor for x in golden.run(GATED, folder) if not x.ok}
    assert found
    return found


def test_the_two_ways_of_a_reset_are_told_apart(folder, monkeypatch):
    about = json.loads((folder / "meta.json").read_text())
    about["runs"]["tiny_linear.ttt3r_reset"]["api"] = "forward"
    monkeypatch.setattr(golden, "_meta", lambda _: about)
    assert "camera_pose, largest" in {x.tensor for x in golden.run("tiny_linear.ttt3r_reset", folder) if not x.ok}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_keys_and_shapes_are_those_of_the_checkpoint(folder, checkpoint):
    rows = [line.split("\t") for line in (folder / "keys.tsv").read_text().splitlines()[1:]]
    wanted = {key: shape for name, key, shape, *_ in rows if name == checkpoint}
    with torch.device("meta"):
        model = ReconModel(PRESETS[CHECKPOINTS[checkpoint]])
    assert {key: "x".join(map(str, x.shape)) for key, x in model.state_dict().items()} == wanted
    meta = json.loads((folder / "meta.json").read_text())["models"][CHECKPOINTS[checkpoint]]
    assert sum(p.numel() for p in model.parameters()) == meta["params"]


def test_tied_layers_are_one(folder):
    state = golden.keyed("tiny_dpt", 20250926).state_dict()
    for head in ("dpt_self", "dpt_cross", "dpt_rgb"):
        for i in range(4):
            one, other = (f"downstream_head.{head}.scratch.{x}.weight" for x in (f"layer{i + 1}_rn", f"layer_rn.{i}"))
            assert state[one].data_ptr() == state[other].data_ptr()


def test_keyed_weights_are_the_stored_ones(folder):
    stored, made = load_file(folder / "tiny_linear.weights.safetensors"), golden.keyed("tiny_linear", 20250926)
    assert all(torch.equal(stored[key], x) for key, x in made.state_dict().items())


def test_a_run_that_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(CheckpointError, match="no golden run 'magic'.*present"):
        golden.run("magic", folder)
    with pytest.raises(CheckpointError, match="meta.json"):
        golden.runs(tmp_path)


@pytest.mark.parametrize("name, rule", [("tiny_linear.ttt3r_reset", Confidence()), ("tiny_linear.cut3r", Replace())])
def test_a_stream_gives_the_reference(folder, name, rule):
    """Through the public door: resets come before the frame, so those of the reference are a frame later here."""
    about = json.loads((folder / "meta.json").read_text())["runs"][name]
    model, wanted = golden.keyed("tiny_linear", 20250926), load_file(folder / f"{name}.safetensors")
    model.update, images = rule, golden.inputs(folder, "tiny_linear", "cpu")["image"][about["views"]]
    yes, time = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.float64)
    stream, readouts = Stream(model), []
    for image, before in zip(images, [False, *about["reset"][:-1]]):
        readouts.append(stream.step(Frame(image[None], None, None, None, time, yes, yes & before)))
    for ours, theirs in (
        ("pose", "camera_pose"),
        ("points_world", "pts3d_in_other_view"),
        ("confidence_world", "conf"),
    ):
        made = torch.cat([getattr(x, ours) for x in readouts])
        assert (made - wanted[theirs]).norm() < 1e-4 * wanted[theirs].norm()
    assert (stream.snapshot().inner.tokens - wanted["state_after"][-1:]).abs().max() < 5e-4
