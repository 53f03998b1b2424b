"""Objects that a call replaces: found anew on each call, natively where a row can follow them."""

import weakref

import pytest
import torch

import preheat
from preheat.dispatch import Compiled
from same import Program, same_program

X = torch.linspace(-1.0, 1.0, 8)


class Holder:
    state: object = None


def in_attribute():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.state, self.linear = torch.zeros(8), torch.nn.Linear(8, 8)

        def forward(self, x):
            self.state = torch.tanh(self.linear(x) + self.state)
            return self.state * 2

    module = Recurrent()
    return module, module, lambda value: setattr(module, "state", value)


def in_dict():
    space = {"state": torch.zeros(8)}

    def program(x):
        space["state"] = space["state"] + x
        return space["state"] * 2

    return program, space, lambda value: space.__setitem__("state", value)


def in_list():
    items = [torch.zeros(8), "other"]

    def program(x):
        items[0] = items[0] + x
        return items[0] * 2

    return program, items, lambda value: items.__setitem__(0, value)


def in_cell():
    state = torch.zeros(8)

    def program(x):
        nonlocal state
        state = state + x
        return state * 2

    def put(value):
        nonlocal state
        state = value

    return program, program.__closure__, put


def pair_in_attribute():
    holder = Holder()
    holder.state = (torch.zeros(8), torch.ones(8))

    def program(x):
        left, right = holder.state
        holder.state = (right + x, left)
        return left * right

    return program, holder, lambda value: setattr(holder, "state", (value, value))


KINDS = (in_attribute, in_dict, in_list, in_cell, pair_in_attribute)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_object_of_the_present_call(kind):
    def make():
        program, watch, put = kind()
        between = {
            3: lambda p: put(X * 3),
            4: lambda p: put(p.args[0]),  # the argument itself
            5: lambda p: put(torch.ones(8, dtype=torch.float64)),
            6: lambda p: put(torch.ones(1, 8)),
            7: lambda p: put(X[::1].clone()),
        }
        return Program(program, (X.clone(),), watch=watch, between=between)

    same_program(make, calls=9)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_neither_captured_nor_bound_again(kind):
    program, _, _ = kind()
    compiled = Compiled(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(4):
            compiled(X)
        (*_, variant) = compiled.variants
        entries = [bound._entry for bound in compiled.variants]
        before = preheat.counters()["captures"]
        for _ in range(20):
            compiled(X)
    assert preheat.counters()["captures"] == before and variant.is_native
    assert [bound._entry for bound in compiled.variants] == entries


def test_an_old_state_is_let_go():
    program, module, _ = in_attribute()
    compiled = Compiled(program, options={"cache": False})
    with torch.no_grad():
        for _ in range(4):
            compiled(X)
        old = weakref.ref(module.state)
        compiled(X)
    assert old() is None


def test_a_number_that_the_program_looks_at_later_is_kept_by_its_value():
    """An input of the ops at first, then a key: it is both, and each value is a node of its own."""
    numbers = (1.5, 2.5, 1.5, 2.5, 1.5, 2.5, 1.5)

    def make():
        holder, table = Holder(), {k + 0.5: k for k in range(9)}

        def program(x):
            y = x * holder.state
            holder.state += 1
            if holder.state > 100:
                return y
            return y + table[holder.state]

        between = {
            i: lambda p, n=n: setattr(holder, "state", n) for i, n in enumerate(numbers)
        }
        return Program(program, (X.clone(),), watch=holder, between=between)

    same_program(make, calls=len(numbers))
