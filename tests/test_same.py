"""The comparison itself: it accepts what is equal and names each kind of difference."""

import random
import types

import pytest
import torch

import same as comparison
from same import Program, picture, same, same_program


@pytest.fixture
def compiled_as(monkeypatch):
    """Makes `same` compare with `fake(call)` instead of a compiled call."""

    def set_fake(fake):
        monkeypatch.setattr(comparison, "_compile", lambda call, settings: fake(call))

    return set_fake


def add(x, y):
    return x + y, x


ARGS = (torch.arange(6.0).reshape(2, 3), torch.ones(2, 3))


def test_equal_programs_pass(compiled_as):
    compiled_as(lambda call: call)
    same(add, *ARGS)
    same(torch.nn.Linear(3, 4), ARGS[0])
    same(lambda x: 1 // 0, ARGS[0])
    same(lambda x: torch.dropout(x, 0.5, True), ARGS[0])
    same(lambda x: (x / 0, x * float("nan"), x.to(torch.complex64), x > 2), ARGS[0])


def wrong(change):
    def fake(call):
        return lambda *args, **kwargs: change(call, *args, **kwargs)

    return fake


def _noisy(call, x, y):
    call(x, y)
    print("called")
    return call(x, y)


def _mutating(call, x, y):
    result = call(x, y)
    x.add_(1)
    return result


def _raising(call, x, y):
    raise ValueError("none")


DIFFERENCES = {
    "value": (lambda call, x, y: (x + y + 1e-3, x), "differs by"),
    "integer": (lambda call, x, y: (x + y, x.clone()), "same as|storage"),
    "dtype": (lambda call, x, y: ((x + y).double(), x), "dtype"),
    "strides": (lambda call, x, y: ((x + y).t().contiguous().t(), x), "strides"),
    "alias": (lambda call, x, y: (x.add(y), x[:]), "same as|tensor"),
    "type": (lambda call, x, y: [x + y, x], "type"),
    "length": (lambda call, x, y: (x + y, x, None), "length"),
    "nan": (lambda call, x, y: ((x + y) * float("nan"), x), "NaN or infinity"),
    "grad": (lambda call, x, y: ((x + y).requires_grad_(), x), "requires_grad"),
    "argument": (_mutating, "args|result"),
    "printed": (_noisy, "printed"),
    "exception": (_raising, "type|Raised"),
    "generator": (lambda call, x, y: (torch.rand(1), call(x, y))[1], "random"),
    "python generator": (lambda call, x, y: (random.random(), call(x, y))[1], "random"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_found(name, compiled_as):
    change, words = DIFFERENCES[name]
    compiled_as(wrong(change))
    with pytest.raises(AssertionError, match=words):
        same(add, *ARGS)


def test_exceptions_compare_by_type_and_message(compiled_as):
    def fail(x):
        raise KeyError("a")

    compiled_as(wrong(lambda call, x: (_ for _ in ()).throw(KeyError("b"))))
    with pytest.raises(AssertionError, match="message"):
        same(fail, ARGS[0])


def test_state_of_watched_objects(compiled_as):
    def make():
        box = types.SimpleNamespace(items=[], count=0)

        def call(x):
            box.items.append(x)
            box.count += 1
            return x + box.count

        return Program(call, (torch.ones(2),), watch=box)

    compiled_as(lambda call: call)
    same_program(make)
    compiled_as(lambda call: lambda x: x + 1)
    with pytest.raises(AssertionError):
        same_program(make)


def test_result_overwritten_by_a_later_call_is_found(compiled_as):
    def reuse(call):
        out = torch.empty(2, 3)

        def again(x, y):
            return out.copy_(x + y), x

        return again

    compiled_as(reuse)
    with pytest.raises(AssertionError, match="all results at the end"):
        same(add, *ARGS)


def test_values_are_judged_against_float64(compiled_as):
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 1e4
    weights = torch.randn(64, generator=torch.Generator().manual_seed(1))

    def dot(x):
        return (x * weights.to(x.dtype)).sum()

    def exact(call):
        return lambda x: (x.double() * weights.double()).sum().float()

    compiled_as(exact)
    same(dot, x)
    compiled_as(lambda call: lambda x: exact(call)(x) * 1.001)
    with pytest.raises(AssertionError, match="float64"):
        same(dot, x)


def test_picture_numbers_storages_and_offsets():
    base = torch.zeros(4)
    one = picture([base[1:], base[2:]])
    other = picture([base.clone()[1:], base[2:].clone()])
    moved = torch.zeros(9)
    assert one[2][1:] == ("storage", (0, 0))
    assert [row for row in one if row[1] == "storage"] == [
        row for row in picture([moved[4:7], moved[5:7]]) if row[1] == "storage"
    ]
    assert [row for row in one if row[1] == "storage"] != [
        row for row in other if row[1] == "storage"
    ]
