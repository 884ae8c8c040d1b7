"""The house stands on its floors: imports go down, each dependency has one door, every rule is in the catalogue."""

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

from streammem.rules import RULES

LAYERS = [  # from the ground up; a name covers the modules inside it
    ["types", "errors"],
    ["tree", "shapes"],
    [
        "memory.architecture",
        "memory.bias",
        "memory.retention",
        "memory.algorithm",
        "memory.covariance",
        "memory.features",
        "geometry",
        "chunk",
    ],
    [
        "memory.rule",
        "memory.wrappers",
        "memory.linear",
        "memory.gates",
        "memory.think",
        "memory.chunked",
        "memory.lifted",
    ],
    ["kernels", "rules", "scan", "engine"],
    ["nn", "stream"],
    ["export", "metrics", "store"],
    ["mapping", "recon", "policy", "sources"],
    ["settings", "config"],
    ["build"],
    ["apps"],
]
DOORS = {  # dependency: who may import it
    "yaml": ["streammem/config.py"],
    "open3d": ["streammem/export.py", "apps/bench/"],
    "kornia": ["streammem/geometry.py"],
    "safetensors": ["streammem/store.py", "streammem/recon/weights.py", "streammem/recon/golden.py"],
    "triton": ["streammem/kernels/"],
    "gymnasium": ["streammem/policy/gym.py", "streammem/policy/tasks/", "apps/examples/"],
    "mujoco": ["streammem/policy/tasks/"],
    "rclpy": ["apps/examples/"],
    "tqdm": ["apps/"],
}
NO_NAMES = {"utils", "helpers", "misc", "common", "base", "core", "manager", "handler"}
FILES = sorted([*ROOT.glob("streammem/**/*.py"), *ROOT.glob("apps/**/*.py")])

every = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def module(path: Path) -> str:
    """Dotted name inside the package; apps are the package's own."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "streammem" else parts).removesuffix("__init__").removesuffix(".")


MODULES = {module(path): path for path in FILES}


def layer(name: str) -> int:
    for i, names in enumerate(LAYERS):
        if any(name == known or name.startswith(f"{known}.") for known in names):
            return i
    raise AssertionError(f"{name} has no layer; give it one in LAYERS")


def imported(path: Path, tree: ast.AST):
    """Names of everything imported below `tree`, absolute."""
    inside = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (start, node.module) if part)
            yield from (f"{source}.{alias.name}" for alias in node.names)


def ours(path: Path, tree: ast.AST):
    """Our modules imported below `tree`, as names of MODULES."""
    for name in imported(path, tree):
        inside = name.removeprefix("streammem.") if name.startswith("streammem.") else name
        if not name.startswith(("streammem.", "apps.")):
            continue
        while inside and inside not in MODULES:
            inside = inside.rpartition(".")[0]
        if inside:
            yield inside


def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(), str(path))


def package(name: str) -> str:
    """The first floor-plan word of a module: what it may share a layer with."""
    return name.partition(".")[0]


@every
def test_imports_go_down(path):
    name = module(path)
    if not name or name in ("memory", "rules", "nn", "mapping", "sources", "recon", "policy", "kernels", "chunk"):
        return  # the front of a package: it names what is behind it
    for other in ours(path, parsed(path)):
        within = package(other) == package(name)
        down = layer(other) < layer(name) or (within and layer(other) == layer(name))
        assert down, f"{name} (layer {layer(name)}) imports {other} (layer {layer(other)})"


def test_imports_make_no_circle():
    graph = {name: set(ours(path, parsed(path))) - {name} for name, path in MODULES.items()}
    while graph:
        free = [name for name, others in graph.items() if not others & graph.keys()]
        assert free, f"a circle of imports among {sorted(graph)}"
        for name in free:
            del graph[name]


@every
def test_our_modules_are_imported_at_the_top(path):
    functions = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef)]
    inside = [other for function in functions for other in ours(path, function)]
    assert not inside, f"{path.name} imports {inside} inside a function; wanted at the top of the file"


@every
def test_each_dependency_has_one_door(path):
    where = str(path.relative_to(ROOT))
    for name in imported(path, parsed(path)):
        doors = DOORS.get(name.partition(".")[0])
        assert doors is None or where.startswith(tuple(doors)), f"{where} imports {name}; wanted through {doors}"


def test_names_say_something():
    assert not [path for path in FILES if path.stem in NO_NAMES]


def test_every_rule_file_is_in_the_catalogue():
    files = {path.stem for path in (ROOT / "streammem/rules").glob("*.py")} - {"__init__"}
    assert files == {make.__module__.rpartition(".")[2] for make in RULES.values()}


def test_every_rule_of_the_catalogue_is_a_case():
    cases = (ROOT / "tests/cases.py").read_text()
    assert [name for name in RULES if f'RULES["{name}"]' not in cases] == []


def test_every_rule_says_what_it_is():
    for name, make in RULES.items():
        first, *rest = make.__doc__.strip().splitlines()
        assert first.endswith(".") and any("M_t" in line or "M =" in line or "W_t" in line for line in rest), name


def test_every_package_is_installed():
    named = set(re.findall(r'^    "(streammem[\w.]*)",$', (ROOT / "pyproject.toml").read_text(), re.M))
    folders = {path.parent.relative_to(ROOT) for path in FILES}
    wanted = {".".join(f.parts if f.parts[0] == "streammem" else ("streammem", *f.parts)) for f in folders}
    assert named == wanted | {"streammem.configs"}
