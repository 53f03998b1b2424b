"""Random programs do what eager does, call after call; the grammar reaches what it should.

A failure prints the seed and the smallest program that still fails. More: `make fuzz COUNT=20000`.
"""

import ast

import pytest

import fuzz.check as checking
import same
from fuzz.__main__ import program
from fuzz.check import Script, Tally, Verdict, check
from fuzz.shrink import shrink
from fuzz.world import TEXT

SHRINK_SECONDS = 20


def judge(seed):
    script, backend = program(seed)
    verdict = check(script, backend)
    if verdict.kind == "same":
        return
    small = shrink(script, lambda one: check(one, backend).kind == verdict.kind, SHRINK_SECONDS)
    again = check(small, backend)
    pytest.fail(
        f"seed {seed}, backend {backend}: {verdict.kind}\n{small.text}calls = {small.calls}\n"
        f"{again.message}",
        pytrace=False,
    )


@pytest.mark.parametrize("seed", range(24))
def test_programs_do_as_eager(seed):
    judge(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(100, 500, 20))
def test_programs_do_as_eager_in_numbers(start):
    for seed in range(start, start + 20):
        judge(seed)


def test_most_calls_run_compiled_or_are_captured():
    tally = Tally()
    for seed in range(9000, 9012):
        script, backend = program(seed)
        tally.add(check(script, backend))
    assert tally.programs == 12 and tally.counters["captures"] > tally.programs, tally
    assert tally.plain < tally.calls / 2, tally


# ---------------------------------------- the fuzzer itself
def test_every_row_of_the_grammar_is_written():
    texts = "".join(program(seed)[0].text for seed in range(600))
    for mark in (
        "match ", "while ", "nonlocal total", "produce(", "with Noted(", "raise ", ".item()",
        "numpy", "random.", "print(", "finally:", "global CALLS", "out=", "class Local", "yield",
    ):
        assert mark in texts, mark


def test_programs_repeat_and_parse():
    for seed in range(40):
        script, _ = program(seed)
        assert script == program(seed)[0]
        ast.parse(TEXT + script.text)


def test_a_program_shrinks_to_what_fails():
    script = Script(
        "def program(x, y):\n    a = x + 1\n"
        "    if y:\n        b = (a * 2, bad(a))[1]\n    return a\n",
        (("one",), ("two", "three")),
    )
    small = shrink(script, lambda one: "bad(" in one.text)
    assert small.text == "def program(x, y):\n    b = bad(a)\n"
    assert small.calls == ((),)


def test_a_wrong_result_is_seen(monkeypatch):
    """The comparison has teeth: a compiler that forgets a print, a write or an error is caught."""
    script = Script(
        "def program(x, y, v, n, flag, items, options, *rest, w=None, **named):\n"
        "    print('once')\n    w.count += 1\n    x.add_(1)\n    LOG.append(x)\n"
        "    if w.count > 2:\n        raise ValueError('late') from KeyError('cause')\n"
        "    return x\n",
        ((), (), ()),
    )
    assert check(script).kind == "same"

    for old, new in (
        ("print('once')", "pass"), ("w.count += 1", "w.count += 2"), ("x.add_(1)", "x = x + 1"),
        ("LOG.append(x)", "LOG.append(x.clone())"), ("'cause'", "'other'"), ("'late'", "'early'"),
    ):
        changed = Script(script.text.replace(old, new), script.calls)
        assert _differ(script, changed, monkeypatch), f"{old} -> {new} was not seen"


def _differ(eager: Script, compiled: Script, monkeypatch) -> bool:
    """Whether two programs differ to the fuzzer: the second takes the place of the compiled one."""
    made = []
    original = checking._program

    def other(script, code):
        made.append(1)
        if len(made) == 2:  # the second program made is the compiled side's
            return original(compiled, compile(compiled.text, "<program>", "exec"))
        return original(script, code)

    with monkeypatch.context() as patch:
        patch.setattr(checking, "_program", other)
        patch.setattr(same, "_compile", lambda call, settings: call)
        verdict: Verdict = check(eager)
    return verdict.kind == "differs"
