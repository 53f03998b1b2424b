"""Grad mode, inference mode and their kin as decorators and blocks within a call, in any order: results,
gradients and the modes afterwards are eager's."""

import pytest
import torch

import preheat

MODES = {
    "inference": torch.inference_mode, "no inference": lambda: torch.inference_mode(False),
    "no grad": torch.no_grad, "grad": torch.enable_grad,
    "grad set off": lambda: torch.set_grad_enabled(False), "grad set on": lambda: torch.set_grad_enabled(True),
}
WEIGHT = torch.linspace(0.5, 1.0, 3, requires_grad=True)


def decorated(make):
    helper = make()(lambda x: x * WEIGHT + 1)
    return lambda x: helper(x) * 2


def in_a_block(make):
    def program(x):
        with make():
            y = x * WEIGHT
        return y + 1
    return program


def around_host_calls(make):
    helper = make()(lambda x: x * WEIGHT + 1)

    def program(x):
        y = helper(x)
        print(end="")
        with make():
            print(end="")
            y = y.detach().square()
        print(end="")
        return helper(y) + x
    return program


def left_by_an_exception(make):
    @make()
    def helper(x):
        raise ValueError(str(x.sum() * 0 + WEIGHT.sum()))

    def program(x):
        y = x * 2
        try:
            helper(y)
        except ValueError:
            y = y + WEIGHT
        return y * WEIGHT
    return program


def a_mode_within_another(make):
    def program(x):
        with torch.no_grad(), make():
            y = x * WEIGHT
            with make():
                y = y + 1
        return y * 2
    return program


def a_mode_made_before(make):
    with make() as _:
        pass
    mode = make()
    torch.set_grad_enabled(True)

    def program(x):
        with mode:
            return x * WEIGHT
    return program


def entered_by_the_caller(make):
    """The call leaves what was entered before it, and enters it again."""
    mode = make()

    def program(x):
        y = x * 2
        mode.__exit__(None, None, None)
        y = y * WEIGHT
        mode.__enter__()
        return y + 1

    def run(call, x):
        mode.__enter__()
        try:
            return call(x)
        finally:
            mode.__exit__(None, None, None)
    program.run = run
    return program


PROGRAMS = (
    decorated, in_a_block, around_host_calls, left_by_an_exception, a_mode_within_another,
    a_mode_made_before, entered_by_the_caller)


def state():
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_fwd_grad_enabled(),
        str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set()))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("outer", MODES)
@pytest.mark.parametrize("inner", MODES)
def test_modes_within_a_call(outer, inner, program):
    rows = []
    for wrap in (lambda call: call, lambda call: preheat.compile(call, options={"cache": False})):
        made = program(MODES[inner])
        run, call, seen = getattr(made, "run", lambda call, x: call(x)), wrap(made), []
        for _ in range(3):
            with MODES[outer]():
                try:
                    y = run(call, torch.ones(3))
                except RuntimeError as error:
                    y = torch.ones(())
                    seen.append(str(error))
                seen.append((y.tolist(), y.is_inference(), y.requires_grad, state()))
            torch.set_grad_enabled(True)
            if y.requires_grad:
                seen.append(torch.autograd.grad(y.sum(), WEIGHT)[0].tolist())
        rows.append([*seen, state()])
    assert rows[0] == rows[1]


def test_the_mode_that_is_on_is_no_break():
    for mode in (True, False):
        helper = torch.inference_mode(mode)(lambda x: x * 2)
        compiled = preheat.compile(
            lambda x: helper(x).relu() + 1, fullgraph=True, options={"cache": False})  # noqa: B023
        with torch.inference_mode(mode):
            for _ in range(3):
                assert compiled(torch.ones(3)).tolist() == [3.0] * 3


def test_another_mode_is_a_break_with_a_reason():
    helper = torch.inference_mode()(lambda x: x * 2)
    explanation = preheat.explain(lambda x: helper(x + 1))(torch.ones(3))
    assert [row.reason for row in explanation.breaks] == ["inference_mode_inside"]
