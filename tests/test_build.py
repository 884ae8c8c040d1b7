"""Settings become things that run, and what cannot run is refused in words."""

import dataclasses
import inspect

import pytest
import torch
from conftest import ROOT

from streammem import build, config
from streammem.errors import ConfigError, SourceError
from streammem.mapping import MapSettings
from streammem.settings import ReconstructSettings, SourceSettings
from streammem.sources import SOURCES, Synthetic

CONFIGS = sorted((ROOT / "configs/recon").glob("*.yaml"))


def settings(*overrides, path=None):
    return config.load(ReconstructSettings, path, overrides)


def test_defaults_make_the_synthetic_source_on_the_device_and_from_the_seed():
    source = build.source(settings("seed=3", "source.frames=2", "source.height=6", "source.width=8"))
    assert isinstance(source, Synthetic) and len(source) == 2 and source.seed == 3
    assert source[0].image.shape == (1, 3, 6, 8)
    assert build.source(settings("seed=3", "source.seed=5", "source.frames=1")).seed == 5


def test_a_mapper_is_made_of_the_map_settings():
    told = settings("map.voxel_size_m=0.03", "map.max_bytes=67108864")
    mapper = build.mapper(told)
    assert mapper.settings == told.map and mapper.nbytes <= 67108864


@pytest.mark.parametrize("kind", SOURCES)
def test_every_option_of_every_source_can_be_set(kind):
    known = set(inspect.signature(SOURCES[kind]).parameters) - {"path", "limit", "device"}
    fields = {field.name for field in dataclasses.fields(SourceSettings)}
    assert known <= fields


def test_frames_is_the_limit_of_a_recording(tmp_path):
    told = SourceSettings("folder", str(tmp_path), frames=4, depth_scale=5000.0, intrinsics="freiburg3")
    assert told.options() == {"limit": 4, "depth_scale": 5000.0, "intrinsics": "freiburg3"}
    with pytest.raises(SourceError, match="no colour pictures"):
        build.source(dataclasses.replace(settings(), source=told))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("source.heigth=3", "did you mean 'height'"),
        ("source.tolerance_s=0.1", "tolerance_s is no option of synthetic; it has frames, height"),
        ("source.path=here", "synthetic has the path 'here'"),
        ("source.kind=tum", "tum has no path"),
        ("source.kind=kinect", "'kinect' is not one of 'synthetic', 'folder', 'tum', 'video'"),
        ("source.frames=0", "frames is 0; wanted at least 1"),
        ("autosave_frames=-1", "autosave_frames is -1"),
        ("threads=0", "threads is 0"),
        ("map.voxel_size_m=0", "voxel_size_m"),
        ("map.near_m=9", "near_m is 9"),
        ("poses=guess", "'guess' is not one of 'given', 'find'"),
    ],
)
def test_what_cannot_run_is_said(override, said):
    with pytest.raises(ConfigError) as error:
        settings(override)
    assert said in str(error.value)


def test_a_device_that_is_not_there_is_said():
    with pytest.raises(ConfigError, match="device is 'warp': .*wanted cpu"):
        build.device("warp")
    assert build.device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_our_configs_load_and_hold_only_what_differs(path):
    plain, told = config.plain(ReconstructSettings()), config.plain(settings(path=path))

    def differing(data, defaults, name=""):
        for key, value in data.items():
            if isinstance(value, dict):
                yield from differing(value, defaults[key], f"{name}{key}.")
            elif value == defaults[key]:
                yield name + key

    assert told != plain
    same = list(differing(config.read(path), plain))
    assert [name for name in same if name != "source.depth_scale"] == []


def test_settings_survive_being_written(tmp_path):
    told = settings("source.kind=folder", f"source.path={tmp_path}", "source.intrinsics=[1, 2, 3, 4]", "map.near_m=0.2")
    (tmp_path / "run.yaml").write_text(config.dump(told))
    assert settings(path=tmp_path / "run.yaml") == told


def test_map_settings_print_compare_and_hash():
    assert MapSettings() == MapSettings() and hash(MapSettings()) == hash(MapSettings())
    assert "voxel_size_m=0.02" in repr(MapSettings())
