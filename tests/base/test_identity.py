"""Objects as keys: by `identity`, wherever one module's keys are another's."""

import ast
from pathlib import Path

import pytest

from preheat.base.identity import identity

ROOT = Path(__file__).parents[2] / "preheat"
ADDRESSES = {"capture/classes.py", "capture/native.py"}  # of types; and what a program's own `id` gives


class Twin:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        return True


def test_each_object_has_its_own():
    values = [*map(float, range(1000)), *([k] for k in range(1000)), Twin(), Twin(), None, True, 1, 1.0, "a", (), int, len]
    assert len({identity(value) for value in values}) == len({id(value) for value in values}) == len(values)
    assert all(identity(value) == identity(again) for value, again in zip(values, [*values]))


@pytest.mark.parametrize("folder", ["bridge", "capture", "schedule", "transform"])
def test_objects_have_one_kind_of_key(folder):
    """A key by `id` is found in no table whose keys are identities."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        names = [node.lineno for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load)]
        assert not names or str(path.relative_to(ROOT)) in ADDRESSES, f"{path}: id in lines {names}"
