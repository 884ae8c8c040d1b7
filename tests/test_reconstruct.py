"""The app from the outside: what it writes, how it ends, how it goes on."""

import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file

from apps import cli, reconstruct
from apps.arguments import wish
from apps.journal import Journal, Lines, Sights, Spread
from streammem import config
from streammem.errors import ConfigError, SourceError
from streammem.metrics import read_trajectory
from streammem.settings import ReconstructSettings
from streammem.sources import Folder

MAP = ["map.voxel_size_m=0.04", "map.write.sampling.band_m=0.1", "map.max_bytes=67108864", "map.window_blocks=64"]
SIZE = ["source.height=60", "source.width=80"]
OUTPUTS = {"mesh.ply", "trajectory.tum", "state.safetensors", "report.html", "run.yaml", "preview.png"}


def run(out, *more, frames=6):
    """Exit status of a small run."""
    return cli.main(["reconstruct", "--quiet", "--out", str(out), f"source.frames={frames}", *SIZE, *MAP, *more])


def same_state(a, b):
    one, other = load_file(a / "state.safetensors"), load_file(b / "state.safetensors")
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run of nine frames that was let be, with poses found against the map."""
    out = tmp_path_factory.mktemp("whole")
    assert run(out, "poses=find", frames=9) == 0
    return out


@pytest.fixture
def recording(tmp_path):
    """A plain folder of three empty pictures, without depth."""
    from PIL import Image

    (tmp_path / "recording/color").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (80, 60), (i, 90, 90)).save(tmp_path / f"recording/color/{i}.png")
    return tmp_path / "recording"


def test_every_output_is_written(whole):
    assert {path.name for path in whole.iterdir()} == OUTPUTS | {"truth.tum"}
    assert b"element vertex 0\n" not in (whole / "mesh.ply").read_bytes()[:100]


def test_evo_reads_the_trajectory_and_finds_the_error_of_the_report(whole):
    evo = pytest.importorskip("evo.tools.file_interface")
    metrics, sync = pytest.importorskip("evo.core.metrics"), pytest.importorskip("evo.core.sync")
    found, true = (evo.read_tum_trajectory_file(str(whole / name)) for name in ("trajectory.tum", "truth.tum"))
    true, found = sync.associate_trajectories(true, found)
    found.align(true)
    error = metrics.APE(metrics.PoseRelation.translation_part)
    error.process_data((true, found))
    said = re.search(r"\(ATE\)</td>.*?rmse ([\d.]+) mm", (whole / "report.html").read_text())
    assert found.num_poses == 9 and float(said[1]) > 0
    assert "first frame: the world starts here" in (whole / "report.html").read_text()
    assert float(said[1]) == pytest.approx(1000 * error.get_statistic(metrics.StatisticsType.rmse), abs=0.06)


def test_the_report_needs_nothing_from_elsewhere(whole):
    text = (whole / "report.html").read_text()
    loaded = re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?([^"')\s>]+)""", text)
    assert loaded and all(address.startswith("data:image/jpeg;base64,") for address in loaded)
    assert "<script" not in text and "<svg" in text
    for word in ("tracked", "median", "p99", "against the truth", "(ATE)", "to the true surface", "resident blocks"):
        assert word in text


def test_run_yaml_holds_the_settings_and_what_ran(whole):
    said = config.read(whole / "run.yaml")
    settings = config.build(ReconstructSettings, said["settings"], "run.yaml")
    assert (settings.source.frames, settings.map.voxel_size_m, settings.poses) == (9, 0.04, "find")
    assert {"command", "commit", "machine", "versions", "started", "ended", "frames", "statuses"} <= said["run"].keys()
    assert said["run"]["frames"] == 9 and sum(said["run"]["statuses"].values()) == 9


def test_run_yaml_repeats_the_run(whole, tmp_path):
    assert cli.main(["reconstruct", "--quiet", str(whole / "run.yaml"), "--out", str(tmp_path), "--no-mesh"]) == 0
    assert same_state(whole, tmp_path)
    assert (tmp_path / "trajectory.tum").read_text() == (whole / "trajectory.tum").read_text()
    assert {path.name for path in tmp_path.iterdir()} == (OUTPUTS | {"truth.tum"}) - {"mesh.ply"}


@pytest.mark.parametrize("poses", ["find", "given"])
def test_a_run_that_goes_on_ends_like_one_that_was_let_be(poses, tmp_path, whole):
    if poses == "given":
        whole = tmp_path / "whole"
        assert run(whole, frames=9) == 0
    out = tmp_path / "parts"
    assert run(out, f"poses={poses}", frames=4) == 0
    with open(out / "trajectory.tum", "a") as file:
        file.write("5.0 what a killed run wrote after its last save\n" * 100)
    assert run(out, f"poses={poses}", "--resume", str(out / "state.safetensors"), frames=9) == 0
    assert same_state(whole, out)
    assert (out / "trajectory.tum").read_text() == (whole / "trajectory.tum").read_text()
    assert config.read(out / "run.yaml")["run"]["statuses"] == config.read(whole / "run.yaml")["run"]["statuses"]


def test_resume_alone_takes_the_settings_of_the_run(tmp_path):
    assert run(tmp_path / "a", frames=3) == 0
    told = wish(["--resume", str(tmp_path / "a/state.safetensors")], "")
    assert told.settings.map.voxel_size_m == 0.04 and told.settings.out == tmp_path / "a"
    state = str(tmp_path / "a/state.safetensors")
    assert cli.main(["reconstruct", "--quiet", "--resume", state, "--out", str(tmp_path / "b")]) == 0
    assert same_state(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/trajectory.tum").read_text() == (tmp_path / "b/trajectory.tum").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["map.voxel_sze_m=1"], "no key 'voxel_sze_m'; did you mean 'voxel_size_m'?"),
        (["nothing.yaml"], "nothing.yaml: no such file; wanted a YAML file, key=value, or one of ours: kitchen"),
        (["a.yaml", "b.yaml"], "wanted one, and key=value for what differs"),
        (["--source", "folder:/not/here"], "/not/here is not a folder"),
        (["--source", "folder"], "source is 'folder'; wanted synthetic, synthetic:rgb, folder:PATH"),
        (["--source", "synthetic:x"], "source is 'synthetic:x'"),
        (["--source", "robot:x"], "'robot' is not one of 'synthetic'"),
        (["--resume", "/not/here.safetensors"], "there is no such file"),
        (["device=warp"], "device is 'warp'"),
        (["--out", "/proc/nothing"], "out is /proc/nothing"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reconstruct", *words]) == 2
    heard = capsys.readouterr().err
    assert said in heard and heard.startswith("streammem reconstruct: ") and heard.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_not_lost_by_accident(tmp_path, capsys):
    assert run(tmp_path, frames=2) == 0
    before = (tmp_path / "state.safetensors").read_bytes()
    assert run(tmp_path, frames=3) == 2
    assert "holds a run; wanted another --out, --resume" in capsys.readouterr().err
    assert (tmp_path / "state.safetensors").read_bytes() == before
    assert run(tmp_path, "--overwrite", frames=3) == 0
    assert config.read(tmp_path / "run.yaml")["run"]["frames"] == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["source.seed=1"], "was learnt from another stream (seed=None)"),
        (["poses=find"], "was learnt from another stream (poses=given)"),
        (["source.frames=2"], "has seen 3 frames; wanted a stream longer than 2"),
        (["map.near_m=0.2"], "rule is MapSettings"),
    ],
)
def test_a_state_goes_on_with_its_own_stream_only(more, said, tmp_path, capsys):
    assert run(tmp_path, frames=3) == 0
    assert run(tmp_path, "--resume", str(tmp_path / "state.safetensors"), *more, frames=3) == 2
    assert said in capsys.readouterr().err


def test_the_first_frames_are_checked(tmp_path, capsys, monkeypatch):
    kept = reconstruct.FirstFramesCheck

    def wrong(frames, check):
        return kept((frame._replace(depth=frame.depth * 1000) for frame in frames), check=check)

    monkeypatch.setattr(reconstruct, "FirstFramesCheck", wrong)
    assert run(tmp_path / "a") == 2
    assert "is it in millimetres" in capsys.readouterr().err
    loud = ["--out", str(tmp_path / "b"), "--check", "warn", "source.frames=3", *SIZE, *MAP]
    assert cli.main(["reconstruct", *loud]) == 1  # nothing of it is in range
    assert "first frames, severe: median depth" in capsys.readouterr().err
    assert "no depth in range" in (tmp_path / "b/report.html").read_text()


def test_colours_alone_are_refused_in_words(recording, tmp_path, capsys):
    assert (
        cli.main(["reconstruct", "--quiet", "--source", f"video:{recording}/color", "--out", str(tmp_path / "o")]) == 2
    )
    said = capsys.readouterr().err
    assert "no weights: download cut3r_512_dpt_4_64.pth from https" in said and said.count("\n") == 1
    words = ["--source", f"folder:{recording}", "source.intrinsics=[60,60,40,30]", "--out", str(tmp_path / "o")]
    assert cli.main(["reconstruct", "--quiet", *words]) == 2
    assert "the frame has no depth" in capsys.readouterr().err


def test_a_masked_frame_costs_that_frame(tmp_path):
    assert run(tmp_path, "source.dropout=0.5", frames=8) == 0
    said = config.read(tmp_path / "run.yaml")["run"]["statuses"]
    assert said["skipped"] >= 1 and said["tracked"] + said["skipped"] == 8
    assert len(read_trajectory(tmp_path / "trajectory.tum")[0]) == said["tracked"]


def started(out, folder, *more):
    """A run in a process of its own, in another folder, once it has saved its state."""
    here = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from apps import cli; sys.exit(cli.main())",
    ]
    words = ["reconstruct", "--out", str(out), *SIZE, *MAP, "autosave_frames=1", *more]
    process = subprocess.Popen([*here, *words], cwd=folder, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not (out / "state.safetensors").exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.02)
    return process


def test_sigterm_ends_with_everything_written(tmp_path):
    out = tmp_path / "out"
    process = started(out, tmp_path, "source.frames=100000")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and "SIGTERM after" in said
    assert {path.name for path in out.iterdir()} == OUTPUTS
    frames = config.read(out / "run.yaml")["run"]["frames"]
    assert 1 <= frames < 100000 and "ended early" in (out / "report.html").read_text()
    whole = tmp_path / "whole"
    assert run(whole, frames=frames) == 0 and same_state(whole, out)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.7])
def test_kill_9_leaves_a_state_to_go_on_from(after_s, tmp_path):
    out, frames = tmp_path / "out", 30
    process = started(out, tmp_path, f"source.frames={frames}")
    time.sleep(after_s)
    process.kill()
    process.communicate()
    assert run(out, "--resume", str(out / "state.safetensors"), frames=frames) == 0
    assert run(tmp_path / "whole", frames=frames) == 0
    assert same_state(out, tmp_path / "whole")
    assert (out / "trajectory.tum").read_text() == (tmp_path / "whole/trajectory.tum").read_text()


def test_spread_knows_its_quantiles_to_a_percent():
    spread, seconds = Spread(), torch.rand(4000, generator=torch.Generator().manual_seed(2)).square().add(1e-3)
    for second in seconds.tolist():
        spread.add(second)
    for share in (0.1, 0.5, 0.99):
        assert spread.quantile(share) == pytest.approx(float(seconds.quantile(share)), rel=0.02)
    spread.add(1e9)
    assert len(spread.bins) == len(Spread().bins) and spread.count == 4001


def test_sights_stay_few_and_all_over_the_stream():
    sights, pose = Sights(4), torch.eye(4, dtype=torch.float64)
    for frame in range(1000):
        sights.add(frame, pose)
        assert len(sights.kept) <= 8
    frames = [sight.frame for sight in sights.chosen()]
    assert len(frames) == 4 and frames[0] < 250 and frames[-1] >= 750 and frames == sorted(frames)


def test_a_journal_that_was_read_goes_on_alike():
    def enter(journal, frames):
        for i in frames:
            pose = torch.eye(4, dtype=torch.float64) * (1 + i / 3)
            journal.enter("lost" if i % 5 == 0 else "tracked", "why", pose)

    one, first, other = Journal(3), Journal(3), Journal(3)
    enter(one, range(40))
    enter(first, range(17))
    other.read(first.dump())
    enter(other, range(17, 40))
    assert other.dump() == one.dump() and other.statuses() == Counter(tracked=32, lost=8)


def test_lines_are_cut_where_the_state_was_saved(tmp_path):
    path = tmp_path / "a.tum"
    lines = Lines(path, "# top\n")
    lines.write("one\n")
    kept = lines.sync()
    lines.write("two, and much more than what follows\n")
    lines.sync()
    again = Lines(path, "# top\n", kept)
    again.write("three\n")
    again.sync()
    assert path.read_text() == "# top\none\nthree\n" and not again.cut
    short = Lines(tmp_path / "b.tum", "# top\n", 999, path)
    assert short.cut and short.sync() == len("# top\n")


def test_a_pose_far_away_in_time_keeps_its_digits(tmp_path):
    from apps.journal import tum_line

    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, 3] = torch.tensor([1e3 + 1 / 3, -2.0, 3e-7])
    (tmp_path / "t.tum").write_text(tum_line(1305031102.160407, pose))
    time_s, found = read_trajectory(tmp_path / "t.tum")
    assert float(time_s) == pytest.approx(1305031102.160407, abs=1e-6)
    assert torch.allclose(found[0], pose, atol=1e-9, rtol=0)


def test_a_kitchen_is_reconstructed(recordings, tmp_path):
    words = ["kitchen", f"source.path={recordings / 'redkitchen'}", "source.frames=3", *MAP, "map.max_depth_m=3"]
    assert cli.main(["reconstruct", "--quiet", *words, "--out", str(tmp_path)]) == 0
    assert Folder(recordings / "redkitchen", limit=1).name in (tmp_path / "report.html").read_text()


def test_a_source_that_breaks_says_so(tmp_path, monkeypatch, capsys):
    def broken(self, index):
        raise SourceError("the camera is gone")

    monkeypatch.setattr("streammem.sources.Synthetic.__getitem__", broken)
    assert run(tmp_path) == 2
    assert capsys.readouterr().err == "streammem reconstruct: the camera is gone\n"


def test_a_run_is_resumed_by_its_folder_or_says_that_it_has_no_state_yet(tmp_path):
    (tmp_path / "run.yaml").write_text("settings: {}\n")
    with pytest.raises(ConfigError, match="ended before its first save"):
        wish(["--resume", str(tmp_path)], "")
    (tmp_path / "state.safetensors").write_bytes(b"")
    assert wish(["--resume", str(tmp_path)], "").resume == tmp_path / "state.safetensors"
