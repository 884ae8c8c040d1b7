"""Files of weights: official ones converted without being run, hostile and damaged ones refused in words."""

import argparse
import collections
import dataclasses
import io
import os
import pickle
import struct
import zipfile
from contextlib import nullcontext

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file, save_file

from apps import cli
from streammem.errors import CheckpointError
from streammem.recon import archive, constructor, pickled, weights
from streammem.recon.config import PRESETS
from streammem.recon.model import ReconModel

TINY = PRESETS["tiny_linear"]
TEXT = (
    "ARCroco3DStereo(ARCroco3DStereoConfig(state_size=27, local_mem_size=12, state_pe='2d', pos_embed='RoPE100', "
    "rgb_head=True, pose_head=True, img_size=(64, 64), head_type='linear', output_mode='pts3d+pose', "
    "depth_mode=('exp', -inf, inf), conf_mode=('exp', 1, inf), pose_mode=('exp', -inf, inf), enc_embed_dim=64, "
    "enc_depth=2, enc_num_heads=4, dec_embed_dim=48, dec_depth=4, dec_num_heads=4, state_dec_num_heads=3, "
    "landscape_only=False, freeze='encoder', patch_embed_cls='ManyAR_PatchEmbed'))"
)


def state_dict(config=TINY):
    """Random weights."""
    return ReconModel(config).state_dict()


def official(path, state=None, text=TEXT, **more):
    """A file of the official form: weights, a namespace with the constructor's text, leftovers of training."""
    state = state_dict() if state is None else state
    optimiser = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(5)}}, "param_groups": [{"lr": 1e-4}]}
    torch.save(
        {"model": state, "args": argparse.Namespace(model=text, epochs=3), "optimizer": optimiser, "epoch": 9} | more,
        path,
    )
    return path


@pytest.fixture
def ran(tmp_path):
    """A path that hostile files try to make; the test fails where one is made."""
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists(), "the file ran a command"


def test_a_file_of_the_official_form_converts(tmp_path, capsys):
    state = state_dict()
    path = official(tmp_path / "official.pth", state)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)  # why any of this is here
    out = tmp_path / "out.safetensors"
    assert cli.main(["weights", "convert", str(path), str(out)]) == 0
    said = capsys.readouterr()
    assert "CC BY-NC-SA 4.0" in said.out and "argparse.Namespace" in said.err
    model, found = weights.load(out)
    assert found.config == TINY and found.said and found.licence == weights.OFFICIAL
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
    assert cli.main(["weights", "inspect", str(out)]) == 0
    assert "tiny_linear (the file says so)" in capsys.readouterr().out


def test_a_converted_model_runs_like_the_one_that_was_saved(tmp_path):
    model = ReconModel(TINY).eval()
    official(tmp_path / "a.pth", model.state_dict())
    weights.convert(tmp_path / "a.pth", tmp_path / "a.safetensors")
    again, _ = weights.load(tmp_path / "a.safetensors")
    from streammem.recon.state import View

    yes = torch.ones(1, dtype=torch.bool)
    view = View(torch.randn(1, 3, 32, 48), None, yes, ~yes, yes, ~yes)
    with torch.no_grad():
        one, other = (m(m.init_state(1), view)[1] for m in (model, again))
    assert torch.equal(one.points_world, other.points_world) and torch.equal(one.pose, other.pose)


def test_a_network_of_any_size_is_saved_with_what_it_is(tmp_path):
    config = dataclasses.replace(TINY, patch_size=8, state_size=48, image_size=(48, 64), rope_half_rounding=False)
    model = ReconModel(config)
    weights.save(tmp_path / "a.safetensors", model, "Apache-2.0", "trained on nothing")
    again, found = weights.load(tmp_path / "a.safetensors")
    assert again.config == config and (found.licence, found.said) == ("Apache-2.0", True)
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in again.state_dict().items())
    model.pose_token.data += 1
    assert weights.read(tmp_path / "a.safetensors").fingerprint == found.fingerprint
    weights.save(tmp_path / "b.safetensors", model, "Apache-2.0", "")
    assert weights.read(tmp_path / "b.safetensors").fingerprint != found.fingerprint


@pytest.mark.parametrize("args", ["dict", "omegaconf", "bare", "wrapped", "double"])
def test_other_forms_are_read_too(args, tmp_path):
    state = state_dict()
    if args == "dict":
        path = tmp_path / "a.pth"
        torch.save({"model": state, "args": {"model": TEXT}}, path)
    elif args == "bare":
        path = tmp_path / "a.pth"
        torch.save(collections.OrderedDict(state), path)
    elif args == "omegaconf":
        path = official(tmp_path / "a.pth", state, args=DictConfig({"model": Node(TEXT)}))
    elif args == "wrapped":
        path = official(tmp_path / "a.pth", {f"module.{name}": x for name, x in state.items()})
    else:
        path = official(tmp_path / "a.pth", {name: torch.nn.Parameter(x.double()) for name, x in state.items()})
    found = weights.read(path)
    assert found.whole and found.config == TINY and found.said == (args != "bare")
    assert all(torch.equal(x, state[name]) for name, x in found.tensors.items())


class Node:
    """As OmegaConf keeps a leaf."""

    def __init__(self, value):
        self._val = value


class DictConfig:
    """As OmegaConf keeps a mapping."""

    def __init__(self, content):
        self._content, self._metadata = content, None


def test_a_state_without_a_decoder_of_its_own_borrows_the_images(tmp_path):
    state = {name: x for name, x in state_dict().items() if not name.startswith("dec_blocks_state")}
    found = weights.read(official(tmp_path / "a.pth", state))
    assert found.whole
    name = "blocks.1.attn.qkv.weight".replace("blocks", "dec_blocks_state")
    assert torch.equal(found.tensors[name], state[name.replace("_state", "")])


def test_what_is_missing_or_foreign_is_listed_and_refused(tmp_path, capsys):
    state = state_dict()
    del state["pose_token"], state["enc_norm.bias"]
    state["extra.weight"] = torch.zeros(2)
    state["dec_norm.bias"] = torch.zeros(5)
    path = official(tmp_path / "a.pth", state)
    assert cli.main(["weights", "inspect", str(path)]) == 1
    said = capsys.readouterr().out
    assert "missing     2: pose_token, enc_norm.bias" in said and "unexpected  1: extra.weight" in said
    assert "wrong shape 1: dec_norm.bias [5] float32, not [48] float32" in said
    assert cli.main(["weights", "convert", str(path), str(tmp_path / "out")]) == 2
    assert "2 tensors are missing: pose_token, enc_norm.bias" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.pth"]


def test_what_is_not_the_networks_is_listed_and_left_out(tmp_path, capsys):
    more = {"extra.weight": torch.zeros(2), "steps": torch.tensor(7), "note": "hello"}
    path = official(tmp_path / "a.pth", state_dict() | more)
    assert cli.main(["weights", "inspect", str(path)]) == 0
    assert "unexpected  2: extra.weight, steps" in capsys.readouterr().out
    assert cli.main(["weights", "convert", str(path), str(tmp_path / "out")]) == 0
    assert "left out    2: extra.weight, steps" in capsys.readouterr().err
    assert load_file(tmp_path / "out").keys() == weights.wanted(TINY).keys()
    assert weights.read(path).fingerprint == weights.read(tmp_path / "out").fingerprint
    whole = state_dict()
    whole["pose_token"] = whole["pose_token"].int()
    with pytest.raises(CheckpointError, match=r"have other shapes or types: pose_token \[1, 1, 48\] int32"):
        weights.convert(official(path, whole), tmp_path / "out")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    state = state_dict()
    state["pose_token"].view(-1)[3] = float("nan")
    with pytest.raises(CheckpointError, match="1 tensors are not finite: pose_token"):
        weights.convert(official(tmp_path / "a.pth", state), tmp_path / "out")


@pytest.fixture(scope="module")
def dpt():
    """Random weights of a tiny encoder with the heads that tie tensors."""
    return state_dict(PRESETS["tiny_dpt"])


@pytest.mark.parametrize("which", ["both", "first", "second", "differ"])
def test_tied_tensors_are_taken_under_either_name(which, dpt, tmp_path):
    state = dict(dpt)
    tied = [name for name in state if ".scratch.layer" in name]
    assert len(tied) == 24
    if which in ("first", "second"):
        state = {
            name: x for name, x in state.items() if (".layer_rn." in name) == (which == "second") or name not in tied
        }
    if which == "differ":
        state["downstream_head.dpt_self.scratch.layer_rn.2.weight"] = state[tied[0]] + 1
    path = official(tmp_path / "a.pth", state, TEXT.replace("'linear'", "'dpt'"))
    expected = pytest.raises(CheckpointError, match="layer3_rn.*differ") if which == "differ" else nullcontext()
    with expected:
        found = weights.read(path)
        assert found.whole and all(found.tensors[name].equal(dpt[name]) for name in tied)
    if which == "second":
        weights.convert(path, tmp_path / "a.safetensors")
        assert len(load_file(tmp_path / "a.safetensors")) == len(dpt) - 12
        model, _ = weights.load(tmp_path / "a.safetensors")
        head = model.downstream_head.dpt_cross.scratch
        assert head.layer1_rn.weight is head.layer_rn[0].weight


def test_plain_safetensors_are_told_by_their_shapes(tmp_path):
    save_file(state_dict(), tmp_path / "a.safetensors")
    found = weights.read(tmp_path / "a.safetensors")
    assert found.whole and found.config == TINY and not found.said and found.licence == weights.UNSAID
    save_file({"a": torch.zeros(3)}, tmp_path / "b.safetensors")
    assert weights.read(tmp_path / "b.safetensors").config is None
    with pytest.raises(CheckpointError, match="does not say what it is"):
        weights.load(tmp_path / "b.safetensors")


@pytest.mark.parametrize("name", ["full512_dpt", "full224_linear"])
def test_names_and_shapes_are_those_of_the_released_files(name):
    table = ROOT.parent / "shared/golden/keys.tsv"
    if not table.is_file():
        pytest.skip("no table of keys: ../shared/golden/keys.tsv does not exist beside the project")
    rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    file = {"full512_dpt": "cut3r_512_dpt_4_64", "full224_linear": "cut3r_224_linear_4"}[name]
    told = {row[1]: tuple(map(int, row[2].split("x"))) for row in rows if row[0] == file}
    assert weights.wanted(PRESETS[name]) == told


# ---- hostile files


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_reduce_that_would_run_a_command_does_nothing_and_is_named(tmp_path, ran, capsys):
    path = official(tmp_path / "evil.pth", args=Evil(ran), bonus=[Evil(ran)])
    out = tmp_path / "out.safetensors"
    assert cli.main(["weights", "inspect", str(path)]) == 0
    assert "not run     posix.system: torch's own unpickler would have called this" in capsys.readouterr().out
    assert cli.main(["weights", "convert", str(path), str(out)]) == 0  # the weights in it are whole
    assert "posix.system" in capsys.readouterr().err and not ran.exists()
    torch.save(Evil(ran), path)
    assert cli.main(["weights", "convert", str(path), str(out)]) == 2
    assert "it would have called posix.system: nothing was run" in capsys.readouterr().err


def hostile(ran) -> dict[str, bytes]:
    """Pickles that run a command in the ways that the opcodes know."""
    command = f"touch {ran}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    return {
        "GLOBAL REDUCE": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "STACK_GLOBAL REDUCE": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + text + b"\x85R.",
        "INST": b"(" + text + b"iposix\nsystem\n.",
        "OBJ": b"(cposix\nsystem\n" + text + b"o.",
        "NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04csubprocess\nPopen\n" + text + b"\x85}\x92.",
        "BUILD": b"\x80\x02cargparse\nNamespace\n)\x81}X\x0c\x00\x00\x00__setstate__cposix\nsystem\nsb" + text + b"b.",
        "REDUCE of a REDUCE": b"cbuiltins\ngetattr\n(cos\n__dict__\nX\x06\x00\x00\x00systemtR" + text + b"\x85R.",
    }


@pytest.mark.parametrize("kind", hostile(""))
def test_no_opcode_runs_anything(kind, ran):
    found = pickled.read(hostile(ran)[kind], "it")
    assert found.calls and not ran.exists()
    assert any(word in " ".join(found.names) for word in ("posix.system", "subprocess.Popen", "builtins.getattr"))


def test_the_same_pickles_do_run_where_they_are_trusted(tmp_path):
    made = tmp_path / "made"
    for kind in ("GLOBAL REDUCE", "STACK_GLOBAL REDUCE", "INST", "OBJ", "BUILD"):
        pickle.loads(hostile(made)[kind])
        assert made.exists(), kind
        made.unlink()


def test_every_protocol_is_read_as_python_reads_it():
    value = {"a": [1, 2.5, None, True, "é" * 300, 2**80, -5, 2**40], "b": ("t", {"n": ()}), 3: [(1, 2, 3, 4)]}
    value["twice"] = [value["a"], value["a"]]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        more = {"bytes": b"x" * 300, "set": {7, 8}} if protocol > 3 else {}
        assert pickled.read(pickle.dumps(value | more, protocol), "it").value == value | more


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"junk", b"\x80\x02}", b"\x80\x02h\x05.", b"(((((", b"R.", b"b.", b"\x80\x02K\x01K\x02s.",
        b"N" * 100, b"\x8e" + struct.pack("<Q", 2**62) + b"x.", b"\x96" + struct.pack("<Q", 2**62) + b"x.",
        b"T\xff\xff\xff\x7fabc", b"\x8b\xff\xff\xff\x7fabc", b"r\xff\xff\xff\xff.", b"\x80\x02]a.", b"\xff\xfe",
    ],
)  # fmt: skip
def test_bytes_that_are_no_pickle_are_refused(data):
    with pytest.raises(CheckpointError, match="it: not a whole pickle"):
        pickled.read(data, "it")


def test_deep_nesting_is_only_deep():
    deep = b")" + b"\x85" * 200_000
    assert pickled.read(deep + b".", "it").value
    assert pickled.read(b"}" + deep + b"Ns.", "it").value == {"a tuple": None}  # as a key it cannot be hashed
    with pytest.raises(CheckpointError, match="names something by what is no text"):
        pickled.read(deep + b"\x8c\x01a\x93.", "it")
    with pytest.raises(CheckpointError, match="wanted at most"):
        pickled.read(b"N" * (pickled.MOST_BYTES + 1), "it")


# ---- damaged files


def test_every_cut_of_a_file_is_refused(tmp_path):
    torch.save({"model": {"pose_token": torch.zeros(3)}}, tmp_path / "a.pth")
    whole = (tmp_path / "a.pth").read_bytes()
    cut = tmp_path / "cut.pth"
    for length in range(0, len(whole), 37):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut.pth"):
            weights.read(cut)


@pytest.mark.parametrize("kind", ["text", "empty", "folder", "nothing", "zip", "legacy", "picture", "safetensors"])
def test_other_files_are_refused_in_words(kind, tmp_path, capsys):
    path = tmp_path / "a.pth"
    if kind == "text":
        path.write_text("<html>404 not found</html>")
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a.txt", "hello")
    elif kind == "legacy":
        torch.save({"model": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    elif kind == "picture":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    elif kind == "safetensors":
        path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert cli.main(["weights", "inspect", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("streammem weights: ") and said.count("\n") == 1 and "a.pth" in said


def rewritten(path, change, compress=zipfile.ZIP_STORED):
    """The archive with its pickle changed."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", compress) as file:
        for name, data in parts.items():
            file.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return path


def test_claims_larger_than_the_file_are_refused(tmp_path):
    """Shapes, strides, offsets and storages that reach outside what is there, and views that would fill the memory."""

    def pickle_of(shape, stride, offset, numel):
        class Tensor:
            def __reduce__(self):
                return torch._utils._rebuild_tensor_v2, (Storage(), offset, shape, stride, False, {})

        class Storage:
            pass

        class Pickler(pickle.Pickler):
            def persistent_id(self, thing):
                return ("storage", torch.FloatStorage, "0", "cpu", numel) if isinstance(thing, Storage) else None

        buffer = io.BytesIO()
        Pickler(buffer, 2).dump({"model": {"pose_token": Tensor()}})
        return buffer.getvalue()

    path = tmp_path / "a.pth"
    huge = 10**12
    cases = [
        ((huge,), (1,), 0, 4), ((huge,), (0,), 0, 4), ((4,), (1,), 1, 4), ((2, 2), (3, 1), 0, 4), ((4,), (-1,), 3, 4),
        ((huge,), (1,), 0, huge), ((-4,), (1,), 0, 4), ((4,), (1,), -1, 4), ((2, 2), (2,), 0, 4), ((4,), (1,), 0, 5),
    ]  # fmt: skip
    for case in cases:
        torch.save({"model": {"pose_token": torch.zeros(4)}}, path)
        rewritten(path, lambda _: pickle_of(*case))  # noqa: B023
        with pytest.raises(CheckpointError, match="pose_token (claims|is what)"):
            weights.read(path)
    torch.save({"model": {"pose_token": torch.zeros(4)}}, path)
    rewritten(path, lambda _: pickle_of((2, 2), (1, 2), 0, 4))
    file = archive.Archive(path)
    assert file.tensor(file.value["model"]["pose_token"], "it").shape == (2, 2)


def test_compressed_members_are_refused_unread(tmp_path):
    """A bomb unpacks; torch never packs."""
    path = tmp_path / "a.pth"
    torch.save({"model": {"pose_token": torch.zeros(2**20)}}, path)
    rewritten(path, lambda data: data, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed"):
        weights.read(path)


def test_a_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.pth"
    torch.save({"model": {"pose_token": torch.full((64,), 1.5)}}, path)
    data = bytearray(path.read_bytes())
    data[data.find(struct.pack("<f", 1.5)) + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum of data/0 does not match"):
        weights.read(path)


# ---- the text of a constructor


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('touch ran')", "no call with literal arguments"),
        ("Net(head_type=__import__('os').system('x'))", "is no literal"),
        ("Net(head_type=open('x').read())", "is no literal"),
        ("Net(**{'a': 1})", "it unpacks arguments"),
        ("Net(enc_depth=1", "no call with literal arguments"),
        ("(" * 5000, "no call with literal arguments"),
        ("-" * 7000 + "1", "no call with literal arguments"),
        ("a" * 30000, "has 30000 letters"),
        ("Net(pos_embed='RoPE200')", "pos_embed is 'RoPE200'; this network has 'RoPE100'"),
        ("Net(head_type='gaussian')", "head_type is 'gaussian'"),
        ("Net(enc_depth='many')", "its configuration cannot be used"),
        ("", "no call with literal arguments"),
    ],
)
def test_a_text_that_is_no_list_of_literals_is_refused(text, said):
    with pytest.raises(CheckpointError, match=said.replace("(", r"\(")):
        constructor.config(text)


def test_the_text_gives_the_configuration():
    assert constructor.config(TEXT) == TINY
    assert constructor.config("ARCroco3DStereo(ARCroco3DStereoConfig(head_type='dpt'))") == PRESETS["full512_dpt"]
    assert constructor.arguments("A(B(x=-inf), y=[1, (2.5, 'z')])") == {"x": float("-inf"), "y": (1, (2.5, "z"))}
