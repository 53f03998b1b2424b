"""Calls of a body whose sizes change: what they need is fetched, and the body at their sizes runs.

    calls = SizedCalls(trace, found, Sized(graph, ...), rebuild, live, entry_at)
    calls.call((x,), {}, (x,))       natively where these sizes have a plan, else op by op

The guards have passed before. Sources are fetched as `reach.py` says, by one function for the sizes
and one for all else, since a native entry fetches the latter itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from preheat.ir.trace import Trace
from preheat.run.executable import Executable
from preheat.run.reach import Origin, Reach, reach
from preheat.run.recipes import Rebuild, compile_recipe
from preheat.run.sized import Instance, Sized


def without_body(trace: Trace) -> Trace:
    """`trace` whose node runs nothing."""
    return _with_inputs(trace, ())


def _with_inputs(trace: Trace, inputs: tuple[int, ...]) -> Trace:
    (node,) = trace.nodes
    return replace(trace, nodes=(replace(node, inputs=inputs),))


class SizedCalls:
    """entry_at(trace, found, executable, rebuild)   makes the native entry of a body at some sizes

    A plan may give more results than the body, behind the others: memory that these are views of.
    """

    def __init__(
        self, trace: Trace, found: list, sized: Sized, rebuild: Rebuild, live: Sequence[Any],
        entry_at: Callable[[Trace, list, Executable, Rebuild], Any],
    ):
        (node,) = trace.nodes
        self.sized, self.rebuild, self.found, self._entry_at = sized, rebuild, found, entry_at
        self.live = tuple(live)
        self.symbols = tuple(node.inputs[place] for place in sized.places)
        self.inputs = tuple(node.inputs[place] for place in sized.bodies)
        self.trace = _with_inputs(trace, self.inputs)
        self._sizes = Fetch(reach(trace, self.symbols, found, live))
        self._others = Fetch(reach(trace, (*self.inputs, *rebuild.sources), found, live))

    def call(self, args: tuple, kwargs: dict, arguments: tuple) -> Any:
        """The result of a call that all guards accept. Raises Fault."""
        instance = self.sized.instance(tuple(self._sizes(arguments)))
        run = instance.run  # another thread may take the plan away
        if isinstance(run, Executable):
            return self._native(instance, run)(*args, **kwargs)
        others = self._others(arguments)
        values = run(others[: len(self.inputs)])
        return self.rebuild.function(*values, *others[len(self.inputs) :])

    def run(self, found: Sequence[Any]) -> Any:
        """The result for the objects of all sources. Raises Fault."""
        instance = self.sized.instance(tuple([found[source] for source in self.symbols]))
        values = instance.run([found[source] for source in self.inputs])[: self.rebuild.values]
        return self.rebuild.function(*values, *(found[source] for source in self.rebuild.sources))

    def _native(self, instance: Instance, run: Executable) -> Callable:
        known = instance.entry
        if known is None or known[0] is not self:
            (node,) = self.trace.nodes
            rebuild = compile_recipe(node.end.recipe, len(run.plan.outputs), self.live)
            known = self, self._entry_at(self.trace, self.found, run, rebuild)
            instance.entry = known
        return known[1].call


class Fetch:
    """The objects that a `Reach` leads to, in a call with some arguments (keyword ones last)."""

    def __init__(self, reached: Reach):
        self._deep = reached.deep
        self._origins = reached.origins

    def __call__(self, arguments: tuple) -> list:
        deep = self._deep(*arguments) if self._deep is not None else ()
        return [_found(origin, arguments, deep) for origin in self._origins]


def _found(origin: Origin, arguments: tuple, deep: tuple) -> Any:
    if origin.kind == "object":
        return origin.value
    return (arguments if origin.kind == "argument" else deep)[origin.value]
