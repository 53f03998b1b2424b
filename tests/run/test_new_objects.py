"""Arguments and values in the middle of a chain that are new objects on each call: no slow path."""

import collections
import contextlib
import ctypes
import dataclasses
import io

import pytest
import torch
from native_rows import native_check

from preheat.dispatch import Compiled
from preheat.ir.rows import ARGS
from preheat.run.layout import is_bare, layout
from preheat.run.table import Table
from preheat.run.variant import Variant

Pair = collections.namedtuple("Pair", "left right")
WHERE = layout().instance
needs_layout = pytest.mark.skipif(WHERE is None, reason="judged in Python here")


@pytest.fixture
def slow_calls(monkeypatch):
    """What the rows spoke of that differed."""
    calls, slow = [], Variant._slow

    def counting(self, reason, detail, arguments, names):
        calls.append(self._rows.about(detail))
        return slow(self, reason, detail, arguments, names)

    monkeypatch.setattr(Variant, "_slow", counting)
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    return calls


def tensor(**attributes):
    value = torch.linspace(-1.0, 1.0, 8) * 3
    for name, content in attributes.items():
        setattr(value, name, content)
    return value


def compiled_and_used(program, make, calls=6):
    compiled = Compiled(program, options={"cache": False})
    values = [make() for _ in range(calls)]  # all alive: each has an address of its own
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        for value in values:
            compiled(value)
    return compiled


def of_all(values):
    return sum(value.sum() for value in values)


def in_the_middle(x):
    y = x * 2
    print("between")
    return y.sum().item() + y.mean()


def total(x):
    return x.sum() + x.mean()


PROGRAMS = {
    "tensor": (total, tensor),
    "its __dict__ was read": (total, lambda: [vars(x) for x in [tensor()]] and tensor()),
    "parameter": (total, lambda: torch.nn.Parameter(tensor())),
    "list": (of_all, lambda: [tensor(), tensor()]),
    "tuple": (of_all, lambda: (tensor(), tensor())),
    "namedtuple": (
        lambda pair: pair.left.sum() * pair.right.mean(), lambda: Pair(tensor(), tensor())),
    "dict": (lambda d: d["a"].sum() * d["b"].mean(), lambda: {"a": tensor(), "b": tensor()}),
    "value of a slot": (in_the_middle, tensor),
}


@needs_layout
@pytest.mark.parametrize("name", PROGRAMS)
def test_new_objects_take_no_slow_path(name, slow_calls):
    program, make = PROGRAMS[name]
    compiled = compiled_and_used(program, make)
    slow_calls.clear()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        for _ in range(10):
            compiled(make())
    assert slow_calls == []


def seven():
    return torch.tensor(7.0)


def with_and_without():
    """Tensors that hide the method or not, with each way of keeping or having kept attributes."""
    gone, read, given, dropped = tensor(tag=1, sum=seven), tensor(), tensor(), tensor(sum=seven)
    del gone.tag, gone.sum
    vars(read)["sum"] = seven
    given.__dict__ = {"mean": seven}
    dropped.__dict__ = {}
    many = tensor(**{f"name{i}": i for i in range(60)}, mean=seven)
    hides = tensor(sum=seven)
    return [
        tensor(), tensor(), hides, tensor(), gone, tensor(tag=1), read, tensor(tag=2), tensor(),
        given, dropped, many, tensor(), hides, tensor(tag=3), read, tensor(tag=4), tensor(),
    ]


@pytest.mark.parametrize("start", range(0, 18, 3))
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, tensor()]], ids=["alone", "in a list"])
def test_attributes_of_their_own_are_seen(start, wrap, monkeypatch):
    monkeypatch.setenv("PREHEAT_STRICT", "1")
    program = total if isinstance(wrap(0), int) else lambda values: total(values[0])
    compiled, values = Compiled(program, options={"cache": False}), with_and_without()
    with torch.no_grad():
        for value in (*values[start:], *values[:start]):
            assert torch.equal(compiled(wrap(value)), program(wrap(value)))


def test_an_attribute_that_is_read_is_that_of_the_present_call(slow_calls):
    def program(x):
        return x.sum() * x.scale + x.other.mean()

    def make(factor=2.0):
        return tensor(scale=factor, other=tensor() + factor)

    compiled = compiled_and_used(program, make, calls=20)
    (variant,) = compiled.variants
    entry = variant._entry
    slow_calls.clear()
    with torch.no_grad():
        for factor in (2.0, 3.0, 2.0, 4.0):
            x = make(factor)
            assert torch.allclose(compiled(x), program(x))
    assert compiled.variants[0]._entry is entry


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    factor: int
    names: list


def of_batch(batch):
    return batch.x.sum() * batch.factor + len(batch.names)


def one_of(values):
    return lambda: values.append(values.pop(0)) or values[0]


LOOSE = {
    "tensor with an attribute": (total, lambda: tensor(tag=1)),
    "every other tensor has one": (total, one_of([tensor(), tensor(tag=1)])),
    "instance": (of_batch, lambda: Batch(tensor(), 3, ["a", "b"])),
    "instance in a list": (lambda x: of_batch(x[0]), lambda: [Batch(tensor(), 3, ["a", "b"])]),
    "equal string": (lambda x: torch.ones(3) if x == "left" else None, lambda: "".join("left")),
    "set": (lambda x: torch.ones(3) if "left" in x else None, lambda: {"left"}),
    "two instances": (
        lambda pair: of_batch(pair[0]) - of_batch(pair[1]),
        lambda: (Batch(tensor(), 3, ["a", "b"]), Batch(tensor(), 5, ["c"]))),
}


@pytest.mark.parametrize("name", LOOSE)
def test_an_object_of_the_callers_that_each_call_makes_anew_is_not_bound_anew(name):
    program, make = LOOSE[name]
    compiled = compiled_and_used(program, make, calls=20)
    (variant,) = compiled.variants
    kept, entry = [make() for _ in range(10)], variant._entry
    with torch.no_grad():
        for x in kept:
            torch.testing.assert_close(compiled(x), program(x))
    assert variant._entry is entry and compiled.variants == (variant,)


def test_what_is_in_such_an_object_is_still_looked_at():
    compiled = compiled_and_used(of_batch, LOOSE["instance"][1], calls=20)
    batches = [
        Batch(tensor(), 4, ["a", "b"]), Batch(tensor(), 3, ["a"]), Batch(tensor()[:3], 3, [1, 2]),
        Batch(tensor().double(), 3, ["a", "b"]), Batch(tensor(sum=seven), 3, ["a", "b"]),
        Batch(tensor(), 3, ["a", "b"]),
    ]
    hidden = Batch(tensor(), 3, ["a", "b"])
    hidden.x = tensor() * 5
    with torch.no_grad():
        for batch in (*batches, hidden):
            torch.testing.assert_close(compiled(batch), of_batch(batch))


@needs_layout
def test_the_row_says_what_is_so():
    for value in with_and_without():
        table = Table([value])
        slot = table.slot()
        table.load(0, ARGS, mask=0, save=slot)
        is_empty = not vars(value)
        assert table.bare(slot, WHERE) is is_empty is is_bare(id(value), WHERE)
        assert native(table, value) == (-1 if is_empty else 1)
    untouched = [tensor(), tensor(tag=1)]  # nobody asked for their dicts
    assert [native(table, value) for value in untouched] == [-1, 1]
    del untouched[1].tag
    assert native(table, untouched[1]) == -1


def native(table, value):
    buffer = ctypes.create_string_buffer(table.pack())
    return native_check(Packed(ctypes.addressof(buffer), len(table.rows)), [value])


Packed = collections.namedtuple("Packed", "address count")
