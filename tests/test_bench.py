"""The benchmark program: what it says, how it ends, and how it scores."""

import json
import sys
import types

import numpy as np
import pytest

from apps import bench
from apps.bench import boxes, chart, figure, naive, peers, protocols, rules
from apps.bench.case import Case, Skip
from apps.bench.figure import Measured, at_least, at_most
from apps.bench.workload import Rules
from streammem.rules import RULES

FIELDS = {
    "case",
    "metric",
    "unit",
    "ours",
    "baseline",
    "baseline_name",
    "ratio",
    "target",
    "ok",
    "machine",
    "versions",
    "commit",
}


@pytest.fixture
def fake(monkeypatch):
    """Registers a case of its own: fake(parity, measure) -> its name."""

    def register(parity, measure, name="fake"):
        module = types.ModuleType(f"apps.bench.{name}")
        module.CASE = Case(parity, measure)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(bench.CASES, name, (name, "CASE", "a case for the test"))
        return name

    return register


def fine(setup):
    return None


def shot(depth, pose=None, focal=100.0):
    height, width = depth.shape
    intrinsics = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
    image = np.full((height, width, 3), 90, np.uint8)
    return protocols.Shot(depth.astype(np.float32), image, np.eye(4) if pose is None else pose, intrinsics)


def moved(x=0.0, z=0.0):
    pose = np.eye(4)
    pose[0, 3], pose[2, 3] = x, z
    return pose


def test_a_met_target_exits_with_0_and_a_missed_one_with_1(fake, capsys):
    name = fake(fine, lambda setup: [Measured("error", "mm", 2.0, 4.0, "peer", at_most(2.0))])
    assert bench.main([name]) == 0
    assert "0 missed" in capsys.readouterr().out
    name = fake(fine, lambda setup: [Measured("error", "mm", 2.1, 4.0, "peer", at_most(2.0))])
    assert bench.main([name]) == 1
    assert "1 missed: fake error" in capsys.readouterr().out


def test_a_number_that_is_not_a_number_misses_its_target():
    assert not at_most(1.0).met(float("nan"))
    assert not at_least(1.0).met(float("nan"))
    assert Measured("x", "", None, 1.0, "peer", at_most(2.0)).figure("case").ok is False


def test_nothing_is_measured_and_no_time_is_printed_where_parity_fails(fake, capsys):
    def measure(setup):
        raise AssertionError("measured despite the fault")

    assert bench.main([fake(lambda setup: "3 mm off the plane", measure)]) == 1
    said = capsys.readouterr().out
    assert "3 mm off the plane" in said and "MISSED" in said and " ms" not in said


def test_rules_with_targets_is_the_case_targets(fake, monkeypatch, capsys):
    fake(fine, lambda setup: [Measured("error", "", 1.0)])
    monkeypatch.setitem(bench.CASES, "targets", bench.CASES["fake"])
    assert bench.main(["rules", "--targets"]) == 0
    assert "targets: a case for the test" in capsys.readouterr().out


def test_json_has_one_object_a_line_with_every_field(fake, tmp_path, capsys):
    rows = [Measured("error", "mm", 2.0, 4.0, "peer", at_most(3.0)), Measured("state", "bytes", 7)]
    assert bench.main([fake(fine, lambda setup: rows), "--json", str(tmp_path / "deep" / "f.json")]) == 0
    lines = [json.loads(x) for x in (tmp_path / "deep" / "f.json").read_text().splitlines()]
    assert all(set(x) == FIELDS for x in lines)
    assert [x["metric"] for x in lines] == ["parity", "error", "state", "peak_memory"]
    error = lines[1]
    assert (error["ours"], error["ratio"], error["ok"], error["target"]) == (2.0, 0.5, True, "<= 3")
    assert lines[2]["ok"] is None and lines[2]["baseline"] is None
    assert "torch" in error["versions"] and "cores" in error["machine"]


def test_markdown_tables_have_as_many_cells_in_every_row(fake, capsys):
    bench.main([fake(fine, lambda setup: [Measured("error", "mm", 2.0, 4.0, "peer")]), "--markdown"])
    rows = [x for x in capsys.readouterr().out.splitlines() if x.startswith("|")]
    assert len(rows) == 5 and len({x.count("|") for x in rows}) == 1


def test_what_was_measured_before_a_skip_is_kept(fake, capsys):
    def measure(setup):
        yield Measured("error", "mm", 2.0)
        setup.recording("no_such_recording")

    assert bench.main([fake(fine, measure)]) == 0
    said = capsys.readouterr().out
    assert "skipped: needs the recording 'no_such_recording'" in said and "2 mm" in said


def test_a_run_in_which_nothing_could_run_is_no_success(fake):
    def parity(setup):
        raise Skip("not here")

    assert bench.main([fake(parity, fine)]) == 3


def test_an_unknown_case_and_an_unknown_key_are_named():
    with pytest.raises(bench.UnknownCase, match="no case 'mapp'.*map, stream"):
        bench.main(["mapp"])
    with pytest.raises(ValueError, match="framez"):
        bench.main(["map", "--quick", "quality.framez=3"])


def test_quick_does_less_than_the_full_run():
    full, quick = (bench._setup(bench._parser().parse_args(["rules", *x]), []).workload for x in ([], ["--quick"]))
    assert quick.endurance.frames < full.endurance.frames == 10_000
    assert quick.kill.times < full.kill.times == 20
    assert quick.quality.frames < full.quality.frames == 150


def test_timings_are_the_median_and_the_99th_percentile():
    rows = figure.timings("step", [0.001] * 98 + [1.0, 1.0], [0.002] * 10, "peer")
    assert [x.metric for x in rows] == ["step_median", "step_p99", "step_rate"]
    assert rows[0].ours == pytest.approx(1.0) and rows[0].baseline == pytest.approx(2.0)
    assert rows[1].ours == pytest.approx(1000.0)


def test_steps_are_taken_in_turn():
    order = []
    times = figure.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warm=1)
    assert order == ["a", "b"] * 4 and [len(x) for x in times.values()] == [3, 3]


def test_score_counts_what_is_measured_and_rendered():
    depth = np.array([[1.0, 2.0, 0.0, 4.0], [1.0, 1.0, 1.0, 1.0]])  # one unknown, one beyond 3.5 m
    rendered = np.array([[1.010, 2.050, 9.0, 9.0], [0.0, np.nan, 1.030, 0.0]])
    found = protocols.score(rendered, depth)
    assert (found.mean_mm, found.median_mm) == pytest.approx((30, 30))
    assert (found.within_2cm, found.coverage) == pytest.approx((1 / 3, 3 / 6))


def test_a_frame_without_a_rendering_lowers_the_coverage_and_leaves_the_errors():
    depth = np.ones((2, 2))
    mean = protocols.average([protocols.score(depth + 0.01, depth), protocols.score(0 * depth, depth)])
    assert mean.mean_mm == pytest.approx(10) and mean.coverage == pytest.approx(0.5)


class Recorder:
    """A method that says what it was asked."""

    def __init__(self):
        self.asked = []

    def write(self, shot):
        self.asked.append(("write", shot.time_s))

    def render(self, shot):
        self.asked.append(("render", shot.time_s))
        return np.ones(shot.size)


def test_hindsight_never_writes_what_it_renders_and_renders_after_all_is_written():
    shots = [shot(np.ones((2, 2)))._replace(time_s=i) for i in range(30)]
    method = Recorder()
    protocols.hindsight(method, shots)
    written = [t for what, t in method.asked if what == "write"]
    assert [t for _, t in method.asked[27:]] == [5, 15, 25] and not {5, 15, 25} & set(written)
    assert len(written) == 27


def test_streaming_renders_a_frame_before_it_is_written():
    shots = [shot(np.ones((2, 2)))._replace(time_s=i) for i in range(12)]
    method = Recorder()
    protocols.streaming(method, shots, warm_up=3)
    assert [t for what, t in method.asked if what == "render"] == [3, 8]
    assert method.asked.index(("render", 8)) == method.asked.index(("write", 8)) - 1


def test_the_floor_warps_a_plane_exactly_and_the_nearer_surface_wins():
    before, now = shot(np.full((40, 60), 2.0)), shot(np.full((40, 60), 1.5), moved(z=0.5))
    found = peers.warp(before, now, splat=2)
    assert found[found > 0] == pytest.approx(1.5) and (found > 0).mean() > 0.99
    step = np.full((40, 60), 2.0)
    step[:, :30] = 1.0
    found = peers.warp(shot(step), shot(step, moved(x=-0.1)))  # the near half moves right over the far one
    assert found[20, 35] == pytest.approx(1.0) and found[20, 50] == pytest.approx(2.0)


def test_the_floor_leaves_nothing_where_it_saw_nothing():
    depth = np.full((40, 60), 2.0)
    depth[10:20, 10:20] = 0
    assert (peers.warp(shot(depth), shot(depth))[10:20, 10:20] == 0).all()
    assert not peers.Floor().render(shot(depth)).any()


def test_frozen_knows_the_first_frame_only():
    method = peers.Frozen()
    for metres in (2.0, 1.0):
        method.write(shot(np.full((4, 6), metres)))
    assert (method.render(shot(np.zeros((4, 6)))) == 2).all()


def test_a_box_stands_before_what_is_behind_it_and_behind_what_is_before_it():
    depth = np.full((60, 80), 3.0)
    depth[:, :40] = 0.8
    seen = boxes.with_box(shot(depth), np.array([0.0, 0.0, 2.0]), 0.4)
    assert seen.depth[30, 45] == pytest.approx(1.8) and seen.depth[30, 35] == pytest.approx(0.8)
    assert seen.depth[0, 79] == pytest.approx(3.0)
    assert (seen.image[30, 45] != 90).any() and (seen.image[30, 35] == 90).all()


def test_the_volume_of_a_passage_is_that_of_the_boxes():
    points = boxes.inside(np.array([[0.0, 0, 0], [0.2, 0, 0]]), 0.4, 0.02)
    assert len(points) * 0.02**3 == pytest.approx(0.6 * 0.4 * 0.4, rel=0.05)


def test_plain_numpy_fusion_finds_a_plane():
    fused = naive.Naive(np.eye(4), 0.05, 3.0, 0.2)
    fused.write(shot(np.full((60, 80), 1.5)))
    near = (fused.weight > 0) & (np.abs(fused.points[:, 2] - 1.5) < 0.1)
    assert near.any()
    assert fused.distance[near] == pytest.approx(1.5 - fused.points[near, 2], abs=1e-5)


def test_open3d_renders_and_occupies_a_plane():
    peer, seen = peers.Open3D(blocks=500), shot(np.full((120, 160), 1.5), focal=150.0)
    for _ in range(3):
        peer.write(seen)
    assert protocols.score(peer.render(seen), seen.depth).median_mm < 1
    points = np.array([[0.0, 0, 1.3], [0, 0, 1.52], [0, 0, 5.0]])
    assert peer.occupied(points).tolist() == [False, True, False]


def test_the_curve_is_a_picture_with_every_value(tmp_path):
    scores = [protocols.Score(20.0, 5.0, 0.9, 0.9), protocols.Score(30.0, 9.0, 0.8, 0.9)]
    chart.curve(tmp_path / "c.svg", ("1", "default"), {"hindsight": scores}, {"hindsight": scores[1]})
    text = (tmp_path / "c.svg").read_text()
    assert text.count("<circle") == 2 and ">default<" in text and ">1<" in text


def test_every_rule_agrees_with_the_one_by_hand_and_another_does_not(monkeypatch):
    size = Rules(heads=2, key=6, value=5, tokens=3)
    assert [rules.fault(name, size) for name in RULES] == [None] * len(RULES)
    monkeypatch.setitem(rules.BY_HAND, "delta", rules.BY_HAND["gated_delta"])
    assert "delta is" in rules.fault("delta", size) and "after 1 frames" in rules.fault("delta", size)


def test_the_known_figures_of_the_floor_come_out(recordings):
    found = protocols.streaming(peers.Floor(), protocols.load_kitchen(recordings))
    assert (round(found.mean_mm, 1), round(found.median_mm, 1)) == (12.1, 5.0)
    assert round(found.within_2cm, 2) == 0.91
