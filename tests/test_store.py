"""States as files: whole or not there, and refused with a reason where they are something else."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
import torch
from conftest import ROOT
from safetensors.torch import save_file
from torch import Tensor

from streammem import tree
from streammem.errors import CheckpointError
from streammem.rules import RULES
from streammem.store import fingerprint, load, save


class State(NamedTuple):
    memory: Tensor
    seen: Tensor
    nothing: object


def state():
    return State(torch.randn(3, 4, dtype=torch.float64), torch.tensor([True, False]), None)


KIND = {"schema": 2, "rule": "delta"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_a_tree_comes_back_bit_for_bit(path):
    before = state()
    save(path, before, **KIND, fingerprint="abc", notes={"voxel_size_m": "0.02"})
    stored = load(path, **KIND, fingerprint="abc")
    assert same(stored.into(tree.zeros_like(before)), before) and stored.into(before).nothing is None
    assert (stored.schema, stored.rule, stored.fingerprint) == (2, "delta", "abc")
    assert stored.notes == {"voxel_size_m": "0.02"}
    assert os.listdir(path.parent) == [path.name]


def test_every_type_and_layout_comes_back(path):
    base = torch.arange(12.0)
    tensors = {
        "half": torch.randn(3).bfloat16(),
        "bytes": torch.randint(0, 255, (2, 3, 4), dtype=torch.uint8),
        "counts": torch.tensor([2**40, -1]),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "turned": base.view(3, 4).T,
        "part": base[2:5],
        "other part": base[4:9],
        "grad": torch.ones(2, requires_grad=True),
    }
    save(path, tensors, **KIND)
    stored = load(path, **KIND).tensors
    assert stored.keys() == tensors.keys()
    for name, x in tensors.items():
        assert stored[name].dtype == x.dtype and torch.equal(stored[name], x), name


def test_a_rule_goes_on_where_it_was(path):
    rule, g = RULES["kalman"](), torch.Generator().manual_seed(0)
    weights = torch.zeros(2, 4, 3)
    one = torch.ones(2, 1, 1)
    frame = (torch.randn(2, 1, 4, generator=g), torch.randn(2, 1, 3, generator=g), (one, one, 0 * one))
    gates = type("G", (), {"lr": one, "retention": one})
    middle = rule.write(rule.init(weights), *frame[:2], gates)
    save(path, middle, schema=1, rule=repr(rule))
    back = load(path, schema=1, rule=repr(rule)).into(rule.init(weights))
    assert same(rule.write(back, *frame[:2], gates), rule.write(middle, *frame[:2], gates))


def test_what_is_not_ours_is_refused(path):
    with pytest.raises(CheckpointError, match="there is no such file"):
        load(path, **KIND)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged, cut short or foreign"):
        load(path, **KIND)
    path.write_bytes(os.urandom(4096))
    with pytest.raises(CheckpointError, match="damaged, cut short or foreign"):
        load(path, **KIND)
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="no state written by streammem"):
        load(path, **KIND)
    with pytest.raises(CheckpointError, match="there is no such file"):
        load(path.parent, **KIND)


def test_a_file_cut_anywhere_is_refused(path):
    save(path, state(), **KIND)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load(path, **KIND)


def test_a_flipped_bit_anywhere_is_noticed(path):
    before = state()
    save(path, before, **KIND)
    whole = bytearray(path.read_bytes())
    for at in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        try:
            stored = load(path, **KIND)
        except CheckpointError:
            continue
        assert bytes(damaged) != bytes(whole) and same(stored.into(before), before), at  # padding holds nothing


def test_another_schema_rule_or_model_is_refused(path):
    save(path, state(), schema=2, rule="delta", fingerprint="abc")
    with pytest.raises(CheckpointError, match="schema 2, written by a newer streammem; this one reads schema 1"):
        load(path, schema=1)
    with pytest.raises(CheckpointError, match="schema is 2; wanted 3"):
        load(path, schema=3)
    with pytest.raises(CheckpointError, match="rule is delta; wanted rls"):
        load(path, schema=2, rule="rls")
    with pytest.raises(CheckpointError, match="fingerprint is abc; wanted xyz"):
        load(path, schema=2, fingerprint="xyz")
    with pytest.raises(CheckpointError, match="another state: names differ"):
        load(path, schema=2).into(torch.ones(3))


def test_a_second_writer_is_refused(path):
    held = os.open(path.with_name(f".{path.name}.partial"), os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match="another writer"):
        save(path, state(), **KIND)
    os.close(held)
    save(path, state(), **KIND)
    load(path, **KIND)


def test_a_failed_save_leaves_the_last_one(path, monkeypatch):
    before = state()
    save(path, before, **KIND)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(path, state(), **KIND)
    assert same(load(path, **KIND).into(before), before)


WRITER = """
import sys, torch
from streammem.store import save
for i in range(1, 10**9):
    save(sys.argv[1], {"x": torch.full((250_000,), float(i))}, schema=1, rule="r", notes={"i": str(i)})
    print(i, flush=True)
"""


def test_the_file_is_whole_after_kill_minus_nine_at_any_moment(path):
    """The writer is killed at twenty moments; what it last said was saved is the least that must be there."""
    g = torch.Generator().manual_seed(0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert writer.stdout.readline()
        moments = torch.rand(7, generator=g).mul(0.02).tolist()
        for pause in moments:  # stopping is as sudden as killing, and lets one process be looked at many times
            time.sleep(pause)
            os.kill(writer.pid, signal.SIGSTOP)
            _whole(path)
            os.kill(writer.pid, signal.SIGCONT)
        os.kill(writer.pid, signal.SIGKILL)
        said = writer.communicate()[0].split()
        assert _whole(path) >= (int(said[-1]) if said else 1)
    save(path, {"x": torch.ones(3)}, schema=1, rule="r")  # what the killed left behind is in nobody's way
    assert os.listdir(path.parent) == [path.name]


def _whole(path) -> int:
    stored = load(path, schema=1, rule="r")
    assert torch.equal(stored.tensors["x"], torch.full((250_000,), float(stored.notes["i"])))
    return int(stored.notes["i"])


def test_fingerprints_tell_models_apart():
    torch.manual_seed(0)
    one = torch.nn.Linear(3, 2)
    before = fingerprint(one)
    assert before == fingerprint(one) and len(before) == 16
    with torch.no_grad():
        one.bias[0] += 1e-6
    assert fingerprint(one) != before
    assert fingerprint(torch.nn.Linear(2, 3)) != before
