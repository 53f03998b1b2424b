"""A number that changes, looked up and looked for: only what came of it is guarded."""

import bisect
import collections
import math
import operator
import types

import pytest
import torch

import preheat
from tests.same import Program, same_program

X = torch.ones(3)
MILESTONES = (5, 12, 30)


class Attributes(dict):
    __getattr__, __setattr__, __delattr__ = dict.__getitem__, dict.__setitem__, dict.__delitem__


class Doubled(dict):
    def __getitem__(self, key):
        return 2 * super().__getitem__(key)

    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)


def place(**given):
    return types.SimpleNamespace(n=0, **given)


def stepped(state, look):
    def program(x):
        state.n += 1
        return x * look(state)

    return program


# by name: what a program keeps, what it looks up in it, how often that may be captured in 40 calls
LOOKS = {
    "a list": (lambda: place(at=list(MILESTONES)), lambda s: 2 if s.n in s.at else 1, 3),
    "a tuple": (lambda: place(at=MILESTONES), lambda s: 2 if s.n not in s.at else 1, 3),
    "a set": (lambda: place(at=set(MILESTONES)), lambda s: 2 if s.n in s.at else 1, 3),
    "a constant": (place, lambda s: 2 if s.n in (5, 12, 30) else 1, 3),
    "a constant set": (place, lambda s: 2 if s.n in {5, 12.0, 30, None, "a"} else 1, 3),
    "keys": (lambda: place(at=dict.fromkeys(MILESTONES)), lambda s: 2 if s.n in s.at else 1, 3),
    "a range": (place, lambda s: 2 if s.n in range(30, 5, -5) else 1, 6),
    "a counter": (
        lambda: place(at=collections.Counter(MILESTONES)), lambda s: s.at[s.n] if s.n in s.at else 0.5, 3),
    "numbers that change": (
        lambda: place(at=(0.5, 3)), lambda s: (setattr(s, "at", (s.n * 0.5, 3)), 2 if 8.0 in s.at else 1)[1], 3),
    "bisect": (lambda: place(at=list(MILESTONES)), lambda s: 1 + bisect.bisect_right(s.at, s.n), 6),
    "bisect_left": (lambda: place(at=MILESTONES), lambda s: 1 + bisect.bisect_left(s.at, s.n), 6),
    "is it finite": (lambda: place(rate=0.1), lambda s: s.n * s.rate if math.isfinite(s.n * 0.5) else 0, 2),
    "is it infinite": (place, lambda s: 1 if math.isinf(10.0 ** (s.n * 0.5 - 5)) else 2, 2),
    "is it no number": (place, lambda s: 1 if math.isnan(s.n * 0.5) else 2, 2),
    "divmod": (place, lambda s: operator.sub(*divmod(s.n, 7)), 2),
    "functions": (place, lambda s: math.atan(s.n) + math.atan2(s.n, 2) - math.sinh(s.n / 40) + math.expm1(-s.n), 2),
}


@pytest.mark.parametrize("name", LOOKS)
def test_only_the_answer_is_guarded(name):
    make, look, most = LOOKS[name]

    def program():
        state = make()
        return Program(stepped(state, look), (X,), watch=state)

    assert same_program(program, calls=40).counters["captures"] <= most


# by name: a program that keeps numbers, which change
KEPT = {
    "attributes of a dict": (lambda: Attributes(rate=1.0, n=0), ("rate", "n")),
    "a subclass of dict": (lambda: type("Table", (dict,), {})(rate=1.0, n=0), ()),
    "a counter": (lambda: collections.Counter(n=0, rate=1.0), ()),
}


@pytest.mark.parametrize("name", KEPT)
def test_numbers_in_dicts_of_other_classes(name):
    make, attributes = KEPT[name]

    def program():
        table = make()

        def by_name(x):
            table.n += 1
            table.rate = table.rate * 0.9
            return x * table.rate + table.n

        def by_item(x):
            table["n"] += 1
            table["rate"] = table["rate"] * 0.9
            return x * table["rate"] + table["n"]

        return Program(by_name if attributes else by_item, (X,), watch=table)

    assert same_program(program, calls=6, captured=True).counters["captures"] == 2


def test_a_dict_with_items_of_its_own():
    def make():
        table = Doubled(a=1.0)

        def program(x):
            table["a"] = table["a"] / 4
            del table["b"]
            table["b"] = 1
            return x * table["a"]

        table["b"] = 1
        return Program(program, (X,), watch=table)

    same_program(make, calls=5)


def test_an_attribute_of_a_dict_that_is_missing():
    def make():
        table = Attributes(a=1.0)

        def program(x):
            del table.a
            return x * table.b

        return Program(program, (X,), watch=table)

    same_program(make, calls=3)


def test_pairs_of_numbers_that_change():
    """Betas: a tuple is made anew at each step, of a part of the one before."""
    def make():
        group = {"betas": (0.9, 0.999)}

        def program(x):
            y = x * group["betas"][0]
            group["betas"] = (group["betas"][0] * 0.99, *group["betas"][1:])
            return y

        return Program(program, (X,), watch=group)

    assert same_program(make, calls=8, captured=True).counters["captures"] == 2


def test_entries_of_one_list():
    def make():
        numbers = [1.0, 0, 2]

        def program(x):
            y = x * numbers[0]
            numbers[0] *= 0.5
            numbers[1] += 1
            numbers[2] = len(numbers)
            return y + numbers[1]

        return Program(program, (X,), watch=numbers)

    assert same_program(make, calls=6, captured=True).counters["captures"] == 2


def test_members_that_change_between_calls():
    """What is in the container is guarded: another member, another order, another value."""
    changes = [
        lambda s: s.at.append(s.n + 1), lambda s: s.at.reverse(), lambda s: s.at.clear(),
        lambda s: s.at.extend((True, math.nan, None, "a", 2.0)), lambda s: setattr(s, "n", math.nan),
        lambda s: s.at.insert(0, s.n), lambda s: setattr(s, "n", True), lambda s: setattr(s, "at", {1: 2}),
        lambda s: s.at.update({s.n + 1: 3, s.n + 2: 3}), lambda s: s.at.pop(s.n + 1), lambda s: None,
        lambda s: setattr(s, "at", {s.n + 1: 3, s.n + 2: 4.0, s.n + 3: 3}), lambda s: None,
        lambda s: s.at.update({s.n + 1: 5})]

    def look(state):
        found = state.n in state.at
        return state.at[state.n] if found and isinstance(state.at, dict) else 2 if found else 1

    def make():
        state = place(at=[3, 7])
        between = {3 + k: lambda _, change=change: change(state) for k, change in enumerate(changes)}
        return Program(stepped(state, look), (X,), watch=state, between=between)

    same_program(make, calls=20)


def test_a_number_that_no_entry_is_under():
    def make():
        state = place(at={5: 1, 6: 1, 7: 2})
        return Program(stepped(state, lambda s: s.at[s.n]), (X,), watch=state)

    same_program(make, calls=10)


def test_a_loss_is_looked_at_once():
    """What a host call gives is another number each time: no variant is for the first one's value."""
    def program(x):
        loss = (x * x).sum().item()
        if not math.isfinite(loss):
            raise FloatingPointError(loss)
        return x * loss if loss < 100 else x - loss

    compiled = preheat.compile(program, options={"cache": False})
    before = preheat.counters()["captures"]
    for k in range(12):
        x = X * (k + 1)
        assert torch.equal(program(x), compiled(x))
    assert preheat.counters()["captures"] - before == 2  # either way
    with pytest.raises(FloatingPointError):
        compiled(X * math.inf)


class Record(collections.OrderedDict):
    """Writes by way of `super()`, as the outputs of transformers' models do."""

    def __setitem__(self, key, value):
        super().__setitem__(key.strip(), value)

    def __delitem__(self, key):
        super().__delitem__(key.strip())


def test_a_write_by_way_of_super_is_a_write():
    def program(x):
        record = Record()
        record[" a "], record["b"] = x + 1, x * 2
        del record[" b "]
        return record

    compiled, x = preheat.compile(program, options={"cache": False}), torch.ones(2)
    before = preheat.counters()
    for _ in range(3):
        found = compiled(x)
        assert type(found) is Record and list(found) == ["a"] and torch.equal(found["a"], x + 1)
    after = preheat.counters()
    assert after["captures"] == before["captures"] + 1 and after["breaks"] == before["breaks"]
