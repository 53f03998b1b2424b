"""The floors of the house hold: imports go downward, torch and llvmlite enter by their doors."""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "preheat"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each floor, and the floors that it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "ir": {"base"},
    "rules": {"base", "ir"},
    "bridge": {"base", "ir"},
    "capture": {"base", "ir", "bridge"},
    "transform": {"base", "ir", "rules", "bridge"},
    "schedule": {"base", "ir", "rules"},
    "generate": {"base", "ir", "rules"},
    "run": {"base", "ir", "bridge"},
    "store": {"base", "ir"},
    "report": {"base", "ir"},
    "targets": {"base", "ir", "bridge", "generate"},
    "differentiate": {
        "base", "ir", "bridge", "capture", "transform", "schedule", "generate", "targets",
        "tuning"},
    "sized_lesson": {"base", "ir", "bridge", "capture", "transform", "differentiate"},
    "templates": {"ir"},
    "tuning": {"base", "ir", "schedule", "generate"},
    "compiler": {
        "base", "ir", "bridge", "capture", "transform", "schedule", "generate", "targets",
        "differentiate", "sized_lesson", "templates", "tuning"},
    "runtime": {"ir", "run", "store"},
    "autotune": {"base", "ir", "bridge", "run", "store"},
    "dispatch": {"base", "ir", "bridge", "run", "store", "report", "runtime", "autotune"},
    "module": {"base"},
    "buckets": {"base", "bridge"},
    "warm": {"base", "bridge", "dispatch", "module"},
    "face": {"base", "bridge", "run", "dispatch", "module", "report", "warm", "buckets"},
    "cli": {"base"},
    "__init__": {"base", "report", "face"},
    "__main__": {"cli"},
}
# The one import inside a function: a process that finds everything in the cache has no compiler.
LAZY = {("dispatch", "compiler"), ("runtime", "compiler")}
DOORS = {
    "torch": (
        "bridge/", "run/", "capture/recorder.py", "capture/joint.py",
        "capture/sized_joint.py", "differentiate.py", "sized_lesson.py"),
    "numpy": ("bridge/", "run/"),
    "llvmlite": ("generate/build.py", "run/load.py"),
    "triton": ("generate/cubin.py",),
    "transformers": (),
}
PRIVATE = re.compile(r"torch\._(dynamo|inductor|functorch)\b")
# A class of the standard library's decorator costs 0.8 ms on import, one of base/dataclass 0.03.
SLOW_DATACLASS = re.compile(
    r"^from dataclasses import .*\b(dataclass|field)\b|@dataclasses\.dataclass\b", re.M
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(home|root|work|Users|tmp/brief)/")


def floor(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


class Import(NamedTuple):
    module: str
    line: int
    is_in_function: bool


@functools.cache
def imports(path: Path) -> list[Import]:
    """The modules that `path` imports for real (not for the type checker)."""
    found: list[Import] = []
    waiting: list[tuple[ast.AST, bool]] = [(tree(path), False)]
    while waiting:
        node, is_inside = waiting.pop()
        found += (Import(module, node.lineno, is_inside) for module in _imported(path, node))
        is_inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        waiting += ((child, is_inside) for child in ast.iter_child_nodes(node))
    return found


def _imported(path: Path, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
        return [f"preheat.{alias.name}" for alias in node.names] if node.module == "preheat" else [node.module]
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "later":
        return [node.args[0].value]
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path):
    own = floor(path)
    allowed = MAY_IMPORT[own] | {own} | {target for source, target in LAZY if source == own}
    for module, line, _ in imports(path):
        parts = module.split(".")
        if parts[0] != "preheat":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if own in ("cli", "__main__") and target in ("__init__", "__version__"):
            continue
        assert target in allowed, f"{path.name}:{line}: {own} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_enter_by_their_doors(path):
    inside = path.relative_to(PACKAGE).as_posix()
    for module, line, _ in imports(path):
        doors = DOORS.get(module.split(".")[0])
        if doors is not None:
            assert inside.startswith(doors), f"{inside}:{line} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_import_inside_a_function(path):
    for module, line, is_in_function in imports(path):
        is_allowed = (floor(path), module.removeprefix("preheat.")) in LAZY
        assert not is_in_function or is_allowed, f"{path.name}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_text(path):
    text = path.read_text(encoding="utf-8")
    assert not PRIVATE.search(text), "a private compiler of torch"
    assert not MACHINE_PATHS.search(text), "names a path of some machine"
    assert text.count("\n") <= 600, "split it by subject"
    is_ours = path == PACKAGE / "base" / "dataclass.py"
    assert is_ours or not SLOW_DATACLASS.search(text), "use preheat.base.dataclass"
    assert ast.get_docstring(tree(path)) or not text.strip(), "a file says what it is for"


def test_every_floor_is_known():
    assert {floor(path) for path in FILES} <= MAY_IMPORT.keys()


def test_no_paths_of_a_machine_anywhere():
    for pattern in (
        "tests/**/*.py",
        "bench/*.py",
        "docs/*.md",
        "*.md",
        "Makefile",
        ".ci/run",
        "*.toml",
        "*.txt",
    ):
        for path in ROOT.glob(pattern):
            if path != Path(__file__):
                assert not MACHINE_PATHS.search(path.read_text(encoding="utf-8")), path
