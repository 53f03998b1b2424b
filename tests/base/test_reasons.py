"""The table of reasons: each row reads well and is raised, and its example tells the truth."""

import ast
import pathlib
import sys
import textwrap

import pytest
import torch

import preheat
from preheat.base.fallbacks import FALLBACKS, with_hint
from preheat.base.kinds import KINDS
from preheat.base.reasons import REASONS, explain, kind_of, whole_message
from preheat.report.breaks_page import breaks_page

ROOT = pathlib.Path(preheat.__file__).parent
# Nothing that a person would write breaks with these: other programs, in other tests, raise them.
WITHOUT_EXAMPLE = {
    "untracked_tensor", "overlapping_write", "op_argument", "own_write", "foreign_state", "fault",
    "internal_error", "limit_ops", "limit_nodes", "no_snapshot", "bytecodes", "limit_guards", "recompile_limit", "marked_size",
    "list_length", "changing_key", "changing_loop", "impure_region", "raises",
}


def breaks_of(program: str) -> set[tuple[str, str]]:
    """The reasons and kinds of the breaks of `step` in `program`, whose statements after `step` call it."""
    seen: set[tuple[str, str]] = set()
    space = {"torch": torch, "preheat": preheat, "x": torch.arange(1.0, 5.0)}

    def explained(*args):
        found = preheat.explain(space["plain"])(*args)
        seen.update((row.reason, row.kind) for row in found.breaks)
        assert found.error is None, found.error
        return found.result

    for statement in ast.parse(program).body:
        text = ast.get_source_segment(program, statement)
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            text = "@preheat.disable\n" + text
        exec(compile(text, "example", "exec"), space)
        if isinstance(statement, ast.FunctionDef) and statement.name == "step":
            space["plain"], space["step"] = space["step"], explained
    return seen


@pytest.mark.parametrize("name", [name for name, row in REASONS.items() if row.before])
def test_the_example_breaks_and_the_rewrite_does_not(name):
    depth = sys.getrecursionlimit()
    try:
        assert (name, REASONS[name].kind) in breaks_of(REASONS[name].before)
        assert breaks_of(REASONS[name].after) == set()
    finally:
        sys.setrecursionlimit(depth)


def test_examples_are_where_they_can_be():
    assert {name for name, row in REASONS.items() if not row.before} == WITHOUT_EXAMPLE
    for row in REASONS.values():
        assert bool(row.before) == bool(row.after)
        for text in (row.before, row.after):
            assert text == textwrap.dedent(text)
            assert all(len(line) < 80 for line in text.split("\n"))


def test_every_reason_is_used():
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (*(ROOT / "capture").glob("*.py"), *(ROOT / "bridge").glob("*.py"),
                     ROOT / "dispatch.py", ROOT / "run/breaks.py")
    )
    unused = [name for name in REASONS if f'"{name}"' not in text]
    assert not unused, unused


def raised(tree: ast.AST) -> set[str]:
    """The reasons that are given by name where something is given up or refused."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            place = {"Unsupported": 0, "GiveUp": 0, "break_of": 0, "break_at": 0, "Call": 1}.get(node.func.id)
            if place is None or place >= len(node.args):
                continue
            if place == 1 and getattr(node.args[0], "value", None) != "refuse":
                continue
            names |= {
                part.value for part in ast.walk(node.args[place])
                if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return names


def test_every_reason_that_is_raised_is_in_a_table_and_on_the_page():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")]
    names = set().union(*map(raised, trees))
    assert {"backward", "no_kernel", "host_call", "symbolic"} <= names
    assert names <= {*REASONS, *FALLBACKS}, names - {*REASONS, *FALLBACKS}
    assert set(FALLBACKS) <= names, set(FALLBACKS) - names
    assert not REASONS.keys() & FALLBACKS.keys()
    page = breaks_page()
    assert all(f"`{name}`" in page for name in names)


def test_a_fallback_says_what_to_do():
    assert with_hint("alias: f32 as i32") == f"alias: f32 as i32; {FALLBACKS['alias'].hint}"
    assert with_hint("KeyError: 3") == "KeyError: 3"


def test_every_reason_reads_as_a_sentence():
    for name, row in REASONS.items():
        sentence, hint = explain(name, "DETAIL")
        assert sentence and hint and "{" not in sentence and row.kind in KINDS
    assert {row.kind for row in REASONS.values()} == KINDS.keys()


def test_kinds():
    assert kind_of("host_call", goes_on=True) == "host"
    assert kind_of("host_call") == kind_of("unknown") == "eager"
    assert kind_of("no_recipe", goes_on=True) == "host"
    assert kind_of("recompile_limit") == "limit"


def test_the_message_of_fullgraph_has_place_line_reason_and_rewrite():
    text = whole_message(
        "f", "data_dependent_branch", "the truth of a tensor", "model.py", 12, "  if x.any():", "do")
    assert text == (
        "fullgraph=True, but f is not one graph: model.py:12 decides something by the value of a "
        "tensor (the truth of a tensor) [data_dependent_branch]\n    if x.any():\ndo")
    assert "f breaks: why [new]" in whole_message("f", "new", "why", "", 0, "", "")
