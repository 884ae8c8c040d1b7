"""Configs are strict, and every refusal says where and what would be right."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from streammem import config
from streammem.errors import ConfigError


@dataclass(frozen=True)
class RuleSettings:
    name: Literal["delta", "yaad"] = "delta"
    threshold: float = 1.0
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    size: tuple[int, int] = (480, 640)
    rule: RuleSettings = RuleSettings()
    lr: float = 1e-3
    note: str | None = None
    flag: bool = False
    levels: tuple[float, ...] = ()
    out: Path = Path("out")
    scale: float | Literal["auto"] = "auto"

    def __post_init__(self):
        if self.lr <= 0:
            raise ValueError(f"lr must be > 0, not {self.lr}")


@pytest.fixture
def read(tmp_path):
    def read(text, *overrides):
        path = tmp_path / "a.yaml"
        path.write_text(text)
        return config.load(Settings, path, overrides)

    return read


def test_values_and_overrides(read):
    text = "size: [384, 512]\nlr: 1e-8\nrule: {name: yaad, threshold: 2, args: {p: [1]}}\nlevels: [1, 2.5]\nout: a/b"
    loaded = read(text, "rule.threshold=1e-2", "flag=true", "scale=5000", "note=hello world")
    rule = RuleSettings("yaad", 0.01, {"p": [1]})
    assert loaded == Settings((384, 512), rule, 1e-8, "hello world", True, (1.0, 2.5), Path("a/b"), 5000.0)
    assert isinstance(loaded.lr, float) and isinstance(loaded.levels[0], float)


def test_defaults_need_no_file(read):
    assert config.load(Settings) == read("") == read("{}") == Settings()
    assert config.load(Settings, None, ["rule.name=yaad"]).rule.name == "yaad"
    assert read("note: null").note is None and read("scale: auto").scale == "auto"


@pytest.mark.parametrize(
    "text, said",
    [
        ("learning: 1", r"a.yaml: no key 'learning'; known: size, rule"),
        ("rule: {nmae: delta}", r"a.yaml: rule: no key 'nmae'; did you mean 'name'"),
        ("on: 1", "no key True; YAML reads on, off, yes and no"),
        ("size: [1]", "size: 2 items are wanted, not 1"),
        ("size: 3", "size: a list is wanted, not 3"),
        ("size: [1, true]", r"size\[1\]: int is wanted, not True"),
        ("size: [1, 2.0]", r"size\[1\]: int is wanted, not 2.0"),
        ("lr: fast", "lr: float is wanted, not 'fast'"),
        ("lr: true", "lr: float is wanted, not True"),
        ("lr: -1", "lr must be > 0, not -1"),
        ("lr: 1\nlr: 2", "key 'lr' is given twice"),
        ("flag: 1", "flag: bool is wanted, not 1"),
        ("note: 3", "note: str is wanted, not 3"),
        ("rule: delta", "rule: a mapping is wanted, not 'delta'"),
        ("rule: {name: oja}", "rule: name: 'oja' is not one of 'delta', 'yaad'"),
        ("scale: big", "float is wanted, not 'big'; or .*'big' is not one of 'auto'"),
        ("- 1", "a mapping is wanted"),
        ("a: [", "not YAML"),
    ],
)
def test_faults_are_said(read, text, said):
    with pytest.raises(ConfigError, match=said):
        read(text)


@pytest.mark.parametrize(
    "override, said",
    [
        ("lr", "'lr': wanted key=value"),
        ("=1", "wanted key=value"),
        ("rule.treshold=1", "did you mean 'threshold'"),
        ("lr.x=1", "lr: a mapping is wanted, not 1"),
        ("lr=[", "the value is not YAML"),
    ],
)
def test_faults_of_overrides_are_said(read, override, said):
    with pytest.raises(ConfigError, match=said):
        read("lr: 1", override)


def test_a_missing_field_and_a_missing_file_are_said(tmp_path):
    @dataclass(frozen=True)
    class Needs:
        size: int

    with pytest.raises(ConfigError, match="size"):
        config.load(Needs)
    with pytest.raises(ConfigError, match="No such file"):
        config.load(Settings, tmp_path / "none.yaml")


def test_what_is_dumped_is_read_back(tmp_path):
    path, value = (
        tmp_path / "run.yaml",
        Settings((1, 2), RuleSettings("yaad", 1e-9), 1e-12, "ü", True, (1.5,), Path("x")),
    )
    path.write_text(config.dump(value))
    assert config.load(Settings, path) == value
    assert config.dump({"settings": value, "versions": {"torch": "2"}}).startswith("settings:\n  size:\n")


def test_keys_given_twice_deep_down_are_said(read):
    with pytest.raises(ConfigError, match="'name' is given twice"):
        read("rule: {name: delta, name: yaad}")
