"""Results of every shape are built again: classes, sharing, cycles, aliases of inputs."""

import collections
import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import pytest
import torch

from tests.capture.replay import assert_same, captured, outcome, replay


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Data:
    x: Any
    n: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = None


class Plain:
    made = 0

    def __init__(self, x):
        type(self)
        self.x, self.me = x, self


class Counted:
    """Its constructor must not run in a replay."""

    def __init__(self, x, log):
        log.append(x)
        self.x = x


class Items(list):
    pass


class Table(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, (value, "wrapped"))


class Color(enum.Enum):
    RED = 1


class Reduced:
    def __init__(self, x):
        self.x = x

    def __reduce__(self):
        raise AssertionError("no reducer of the program may run")


def table(x):
    made = Table()
    made["a"] = x
    return made


def counted(x):
    log = []
    return Counted(x, log), log


def cycle(x):
    made = [x]
    made.append(made)
    return made


def shared(x):
    y = x + 1
    inner = [y]
    return {"a": inner, "b": inner, "c": (y, y)}


RESULTS = {
    "tensor": lambda x: x + 1,
    "input": lambda x: x,
    "view of an input": lambda x: x[0],
    "twice": lambda x: (x, x, x + 1),
    "primitives": lambda x: (1, 2.5, True, None, "s", b"b", 1j, ...),
    "special floats": lambda x: [float("nan"), float("inf"), -0.0],
    "list": lambda x: [x + 1, [x * 2]],
    "dict": lambda x: {"a": x + 1, 2: {"b": x}},
    "set": lambda x: {1, 2, "a"},
    "frozenset": lambda x: frozenset((1, 2)),
    "namedtuple": lambda x: Pair(x + 1, x),
    "dataclass": lambda x: Data(x + 1),
    "frozen dataclass": lambda x: Frozen(x + 1),
    "slotted dataclass": lambda x: Slotted(x + 1, [x]),
    "size": lambda x: (x.shape, torch.Size([1, 2])),
    "dtype and device": lambda x: (x.dtype, x.device, torch.strided),
    "ordered dict": lambda x: collections.OrderedDict(b=x + 1, a=x),
    "default dict": lambda x: collections.defaultdict(list, a=[x + 1]),
    "deque": lambda x: collections.deque([x + 1], maxlen=3),
    "list subclass": lambda x: Items([x + 1]),
    "dict subclass": table,
    "slice and range": lambda x: (slice(0, 2), range(3)),
    "enum": lambda x: Color.RED,
    "class and function": lambda x: (Plain, len, torch.relu, collections.OrderedDict.update),
    "partial": lambda x: functools.partial(torch.add, x + 1, alpha=2),
    "bound method": lambda x: Data(x + 1).__repr__,
    "own reducer": lambda x: Reduced(x + 1),
    "shared": shared,
    "max": lambda x: x.max(dim=0),
    "long list of numbers": lambda x: torch.tensor(list(range(200))),
}


@pytest.mark.parametrize("name", RESULTS)
def test_result(name):
    program = RESULTS[name]
    with torch.no_grad():
        made = captured(program, torch.randn(3, 4))
        y = torch.randn(3, 4)
        ours, theirs = replay(made, program, y), program(y)
    if name == "special floats":
        assert repr(ours) == repr(theirs)
    elif name in ("partial", "bound method"):
        assert type(ours) is type(theirs) and repr(ours) == repr(theirs)
    else:
        assert_same(ours, theirs)


def test_the_input_itself_comes_back():
    y = torch.ones(2)
    assert replay(captured(lambda x: [x], torch.ones(2)), None.__class__ and (lambda x: [x]), y)[0] is not None
    program = RESULTS["input"]
    assert replay(captured(program, torch.ones(2)), program, y) is y


def test_sharing_and_cycles_stay():
    x = torch.ones(2)
    ours = replay(captured(shared, x), shared, x)
    assert ours["a"] is ours["b"] and ours["c"][0] is ours["c"][1] is ours["a"][0]
    ours = replay(captured(cycle, x), cycle, x)
    assert ours[1] is ours
    ours = replay(captured(Plain, x), Plain, x)
    assert ours.me is ours and type(ours) is Plain


def test_fresh_objects_are_fresh_each_time():
    program = RESULTS["list"]
    made, y = captured(program, torch.ones(2)), torch.ones(2)
    first, second = replay(made, program, y), replay(made, program, y)
    assert first is not second and first[1] is not second[1]


def test_constructors_do_not_run_again():
    made = captured(counted, torch.ones(2))
    ours, log = replay(made, counted, torch.ones(2))
    assert len(log) == 1 and log[0] is ours.x


def test_outside_objects_come_back_themselves():
    config, items = {"a": [1]}, [1, 2]

    def program(x):
        return config, items, config["a"], x

    ours = replay(captured(program, torch.ones(2)), program, torch.ones(2))
    assert ours[0] is config and ours[1] is items and ours[2] is config["a"]


@pytest.mark.parametrize("program", [
    lambda x: (i for i in [x]), lambda x: iter({1}), lambda x: type("T", (), {}),
])
def test_what_has_no_recipe_breaks(program):
    found = outcome(program, torch.ones(2))
    assert found.captured is None and found.breaks[0].reason in ("no_recipe", "host_call"), found.breaks


def half_read(x):
    rest = iter([x, x + 1, x + 2])
    next(rest)
    return rest


def counter_of(x):
    calls = []

    def count(step=2, *, by=1):
        calls.append(x)
        return len(calls) * step * by

    count.tag = "mine"
    count()
    return count


def test_iterators_come_back_as_far_as_they_were():
    y = torch.ones(2)
    for program in (
        half_read, lambda x: zip([x], [x + 1]), lambda x: enumerate([x, x], 3),
        lambda x: {"a": x, "b": x + 1}.values(), lambda x: iter({"a": x}.items()),
    ):
        assert_same(list(replay(captured(program, y), program, y)), list(program(y)))


def test_closures_come_back_with_their_cells():
    y = torch.ones(2)
    ours = replay(captured(counter_of, y), counter_of, y)
    assert (ours.tag, ours.__qualname__) == ("mine", "counter_of.<locals>.count")
    assert [ours(), ours(3, by=2)] == [4, 18]
    assert replay(captured(counter_of, y), counter_of, y)() == 4


def test_bound_super_comes_back():
    ours = replay(captured(bound_super, torch.ones(2)), bound_super, torch.ones(2))
    assert ours.__self_class__ is Data


def bound_super(x):
    return super(Data, Data(x))


class Fields(collections.OrderedDict):
    def __setitem__(self, name, value):
        super().__setitem__(name, value)


def fields_of(x):
    found = Fields()
    found["data"] = Data(x)
    return found


def test_what_is_stored_behind_a_key_is_not_looked_at():
    ours = replay(captured(fields_of, torch.ones(2)), fields_of, torch.ones(2))
    assert type(ours) is Fields and type(ours["data"]) is Data
