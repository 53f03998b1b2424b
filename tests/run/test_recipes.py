"""Recipes: every step kind, identity and cycles, and what is refused."""

import collections
import math
import types

import pytest
import torch

from preheat.base.errors import InternalError, Unsupported
from preheat.bridge.ambient import AMBIENT, SETTABLE, autocast_nesting
from preheat.ir.scalar import apply, symbol
from preheat.ir.trace import At, Live, Named, Recipe, Step
from preheat.run.recipes import compile_recipe, has_effects


def build(steps, values=(), objects=(), live=(), result=None):
    recipe = Recipe(
        tuple(Step(kind, tuple(args)) for kind, *args in steps),
        len(steps) - 1 if result is None else result,
    )
    made = compile_recipe(recipe, len(values), live)
    return made.function(*values, *(objects[s] for s in made.sources)), made


def test_one_value_needs_no_call():
    result, made = build([("value", 0)], ["v"])
    assert result == "v" and made.shape == "value"


def test_tuple_of_all_values_needs_no_call():
    result, made = build([("value", 0), ("value", 1), ("tuple", 0, 1)], ["a", "b"])
    assert result == ("a", "b") and made.shape == "tuple"
    _, swapped = build([("value", 0), ("value", 1), ("tuple", 1, 0)], ["a", "b"])
    assert swapped.shape == "rebuild"


def test_containers_and_constants():
    result, _ = build(
        [
            ("value", 0),
            ("const", "key"),
            ("const", None),
            ("const", 1.5),
            ("list", 0, 2, 3),
            ("dict", 1, 4),
            ("const", (1, "x", Named("math", "inf"))),
            ("tuple", 5, 6),
            ("set", 3),
            ("frozenset", 3),
            ("tuple", 7, 8, 9),
        ],
        ["v"],
    )
    assert result == (({"key": ["v", None, 1.5]}, (1, "x", math.inf)), {1.5}, frozenset({1.5}))


def test_identity_and_cycles():
    result, _ = build([("list",), ("append", 0, 0), ("tuple", 0, 0)])
    assert result[0] is result[1] and result[0][0] is result[0]


def test_sources_in_order_of_use_and_live_objects():
    live = object()
    result, made = build(
        [("source", 7), ("const", At(3)), ("const", Live(0)), ("tuple", 0, 1, 2)],
        objects={7: "seven", 3: "three"},
        live=(live,),
    )
    assert made.sources == (7, 3) and result == ("seven", "three", live)


class Point:
    __slots__ = ("x", "__dict__")

    def __setattr__(self, name, value):
        raise AssertionError("the user's code ran")


class Ordered(collections.OrderedDict):
    def __setitem__(self, key, value):
        raise AssertionError("the user's code ran")


class Stack(list):
    def append(self, item):
        raise AssertionError("the user's code ran")


def test_objects_are_filled_without_user_code():
    result, _ = build(
        [
            ("const", Live(0)),
            ("new", 0),
            ("const", 5),
            ("setattr", 1, "x", 2),
            ("update_dict", 1, "y", 2),
            ("const", Live(1)),
            ("call", 5),
            ("const", "k"),
            ("setitem", 6, 7, 2),
            ("const", Live(2)),
            ("new", 9),
            ("append", 10, 2),
            ("tuple", 1, 6, 10),
        ],
        live=(Point, Ordered, Stack),
    )
    point, ordered, stack = result
    assert (
        (point.x, point.y) == (5, 5) and list(ordered.items()) == [("k", 5)] and list(stack) == [5]
    )


def test_cells_functions_and_methods():
    def outer(x):
        return lambda self: (self, x)

    code = outer(1).__code__
    result, _ = build(
        [
            ("value", 0),
            ("cell",),
            ("set_cell", 1, 0),
            ("const", Live(0)),
            ("const", Live(1)),
            ("const", "made"),
            ("const", None),
            ("function", 3, 4, 5, 6, 1),
            ("method", 7, 0),
        ],
        ["v"],
        live=(code, globals()),
    )
    assert (
        isinstance(result, types.MethodType)
        and result() == ("v", "v")
        and result.__name__ == "made"
    )


def test_named_constants():
    result, _ = build([("const", Named("torch", "float32"))])
    assert result is torch.float32
    with pytest.raises(Unsupported):
        build([("const", Named("torch", "no_such_name"))])


def test_a_number_is_computed_from_its_sources():
    n, f = symbol("s0"), symbol("s1", "float")
    steps = [("number", n + 1), ("number", apply("sqrt", f) * n), ("number", 2.5), ("tuple", 0, 1, 2)]
    assert build(steps, objects=(2**70, 4.0))[0] == (2**70 + 1, 2.0 * 2**70, 2.5)
    found, _ = build([("number", apply("mul", f, math.inf))], objects=(0, 1.0))
    assert found == math.inf


def test_refusals():
    with pytest.raises(InternalError):
        build([("append", 0, 0)])
    with pytest.raises(InternalError):
        build([("teleport",)])


class Counted:
    n = 0

    def __setattr__(self, name, value):
        raise AssertionError("the user's code ran")

    def __delattr__(self, name):
        raise AssertionError("the user's code ran")


class Space(dict):
    def __setitem__(self, key, value):
        raise AssertionError("the user's code ran")

    def __delitem__(self, key):
        raise AssertionError("the user's code ran")

    def update(self, *args, **kwargs):
        raise AssertionError("the user's code ran")


def test_effects_happen_in_order_on_the_objects_of_the_call():
    counted, space, items, ordered = Counted(), Space(a=1), [3, 1, 2], collections.OrderedDict(a=1)
    cell, queue = types.CellType(5), collections.deque([1, 2], 2)
    result, made = build(
        [
            ("source", 0), ("const", 7), ("write", 0, "n", 1), ("write", 0, "gone", 1),
            ("delete", 0, "gone"),
            ("source", 1), ("const", "b"), ("setitem", 5, 6, 1), ("const", "a"), ("delitem", 5, 8),
            ("mutate", 5, "update", 0, "not-a-name", 1),
            ("source", 2), ("mutate", 11, "sort", 0), ("append", 11, 1),
            ("mutate", 11, "insert", 2, 1, 6),
            ("source", 3), ("setitem", 15, 6, 1), ("mutate", 15, "move_to_end", 1, 8),
            ("source", 4), ("empty_cell", 18), ("source", 5), ("append", 20, 1),
            ("const", Live(0)), ("write", 22, "n", 1),
            ("tuple", 1),
        ],
        objects=[counted, space, items, ordered, cell, queue],
        live=(Counted,),
    )
    assert result == (7,) and made.shape == "rebuild"
    assert vars(counted) == {"n": 7} and Counted.n == 7
    assert space == {"b": 7, "not-a-name": 7}
    assert items == [1, 2, 3, 7, "b"]
    assert list(ordered.items()) == [("b", 7), ("a", 1)] and list(queue) == [2, 7]
    with pytest.raises(ValueError, match="empty"):
        cell.cell_contents


def test_only_changes_of_what_was_there_are_effects():
    fresh = Recipe((Step("list"), Step("const", (1,)), Step("append", (0, 1))), 0)
    outside = Recipe((Step("source", (0,)), Step("const", (1,)), Step("append", (0, 1))), 0)
    assert not has_effects(fresh) and has_effects(outside)
    assert has_effects(Recipe((Step("ambient", ("grad_enabled", True)), Step("tuple")), 1))


@pytest.mark.parametrize("name", sorted(SETTABLE.keys() & AMBIENT.keys()))
def test_ambient_rows_are_set_to_what_their_readers_say(name):
    before = AMBIENT[name]()
    for value in _other_values(before):
        build([("ambient", name, value), ("tuple",)])
        now = AMBIENT[name]()
        build([("ambient", name, before), ("tuple",)])
        assert now == value and AMBIENT[name]() == before


def _other_values(value):
    """Values of the kind of `value`, with one part changed each."""
    if type(value) is tuple:
        for place, part in enumerate(value):
            if type(part) is not int:
                for other in _other_values(part):
                    yield (*value[:place], other, *value[place + 1:])
    elif type(value) is bool:
        yield not value
    else:
        yield {"float32": "float64", "bfloat16": "float16", "float16": "bfloat16",
               "highest": "high"}[value]


def test_regions_of_autocast_open_and_close():
    before = autocast_nesting()
    build([("ambient", "autocast_nesting", 2), ("tuple",)])
    assert autocast_nesting() == before + 2
    build([("ambient", "autocast_nesting", -2), ("tuple",)])
    assert autocast_nesting() == before


def test_a_row_that_cannot_be_set_is_refused():
    with pytest.raises(Unsupported):
        build([("ambient", "inference_mode", True), ("tuple",)])
