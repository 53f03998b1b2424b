"""Replays a captured trace in plain Python: guards by the oracle, the body op by op, the recipe.

    trace = captured(model, x)            the trace, or an assertion that names the break
    replay(trace, model, y)               what the trace gives for other arguments
    missed(trace, model, y)               the failure that the guards report, or None
"""

import collections

import torch

from preheat.bridge.interpret import run
from preheat.capture.capture import capture
from preheat.ir.trace import Captured
from preheat.run.check import Checker, Failure
from preheat.run.recipes import compile_recipe


def outcome(target, *args, **kwargs):
    return capture(target, args, kwargs)


def captured(target, *args, **kwargs) -> Captured:
    """The capture of a call that must have no break; its result must be as eager's."""
    found = capture(target, args, kwargs)
    if found.error is not None:
        raise found.error
    assert not found.breaks, str(found.breaks[0])
    assert found.captured is not None
    found.captured.result = found.result
    return found.captured


def missed(made: Captured, target, *args, **kwargs) -> Failure | None:
    return Checker(made.trace, target, made.objects).check(args, kwargs)


def replay(made: Captured, target, *args, **kwargs):
    """The result of the trace for these arguments; its guards must hold."""
    objects = Checker(made.trace, target, made.objects).resolve(args, kwargs)
    assert not isinstance(objects, Failure), str(objects)
    (node,) = made.trace.nodes
    values = []
    if node.body is not None:
        with torch.no_grad():
            values = run(node.body, [objects[source] for source in node.inputs])
    made_again = compile_recipe(node.end.recipe, len(values), made.objects)
    return made_again.function(*values, *[objects[source] for source in made_again.sources])


def guards_of(made: Captured, kind: str) -> list:
    """The guards of one kind as (path, expected)."""
    from preheat.ir.text_trace import source_path
    return [
        (source_path(made.trace, g.source) if g.source >= 0 else "", g.expected)
        for g in made.trace.nodes[0].guards if g.kind == kind
    ]


def assert_same(found, expected) -> None:
    """Equal structure, classes, tensors bit by bit (NaN equal), other leaves equal."""
    assert type(found) is type(expected), (type(found), type(expected))
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(found, expected) or torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple | collections.deque):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_same(a, b)
    elif hasattr(expected, "__dict__") and not isinstance(expected, type) and not callable(expected):
        assert_same(found.__dict__, expected.__dict__)
    elif hasattr(expected, "__slots__"):
        for name in expected.__slots__:
            assert_same(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected
