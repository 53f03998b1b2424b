"""Entries of hand-made plans, and a `slow` that notes why it was called."""

import functools

from plans import hand_kernels
from preheat.generate.build import host_target
from preheat.generate.runtime import build_runtime
from preheat.ir.records import REASONS
from preheat.ir.trace import Node, Recipe, Return, Signature, Source, Step, Trace
from preheat.run.device import context
from preheat.run.entry import make_entry
from preheat.run.executable import Executable
from preheat.run.recipes import compile_recipe


@functools.cache
def runtime():
    return build_runtime(host_target())


class NoRows:
    """Guards that always hold."""

    address, count, words = 0, 0, {}


class Slow:
    """Notes (reason, detail, arguments, names); returns `answer`."""

    def __init__(self, answer="slow"):
        self.calls, self.answer = [], answer

    def __call__(self, reason, detail, arguments, names):
        self.calls.append((REASONS[reason], detail, arguments, names))
        return self.answer


MISSED = object()
VALUE = Recipe((Step("value", (0,)),), 0)


def tuple_of(count):
    steps = tuple(Step("value", (k,)) for k in range(count))
    return Recipe((*steps, Step("tuple", tuple(range(count)))), count)


def entry_of(
    plan,
    *,
    recipe=None,
    sources=None,
    inputs=None,
    found=None,
    signature=None,
    slow=None,
    without=(),
    rows=NoRows,
    is_lean=False,
):
    """The entry of `plan`, its inputs the positional arguments unless `sources` say otherwise."""
    count = len(plan.inputs)
    sources = sources or tuple(Source(-1, "arg", k) for k in range(count))
    inputs = tuple(range(count)) if inputs is None else inputs
    recipe = recipe or (VALUE if len(plan.outputs) == 1 else tuple_of(len(plan.outputs)))
    node = Node((), inputs, None, Return(recipe))
    trace = Trace(signature or Signature(count), sources, (node,))
    executable = Executable(plan, hand_kernels(), is_lean=is_lean)
    rebuild = compile_recipe(recipe, len(plan.outputs))
    return make_entry(
        trace,
        found or [None] * len(sources),
        rows,
        executable,
        rebuild,
        slow or Slow(),
        runtime=runtime(),
        context=context(frozenset(without)),
        miss=MISSED,
    )
