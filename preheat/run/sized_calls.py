"""Calls of a body whose sizes change: what they need is fetched, and the body at their sizes runs.

    calls = SizedCalls(trace, found, Sized(graph, ...), rebuild, live, entry_at)
    calls.call((x,), {}, (x,))       natively where these sizes have a plan, else op by op

The guards have passed before. Sources are fetched as `reach.py` says, by one function for the sizes
and one for all else, since a native entry fetches the latter itself.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from preheat.ir.hinted import Book
from preheat.ir.trace import Trace
from preheat.run.entry import EntryStencil
from preheat.run.executable import Executable
from preheat.run.reach import Origin, Reach, reach, without_passing
from preheat.run.recipes import Rebuild, compile_recipe
from preheat.run.replays import CALLS_BEFORE_OWN
from preheat.run.sized import Instance, Planned, Sized, Template
from preheat.run.stencils import Stencils, Values

CALLS_IN_A_ROW = 64  # at the same sizes, before these get an entry that checks them natively


def without_body(trace: Trace) -> Trace:
    """`trace` whose node runs nothing."""
    return _with_inputs(trace, ())


def _with_inputs(trace: Trace, inputs: tuple[int, ...]) -> Trace:
    (node,) = trace.nodes
    return replace(trace, nodes=(replace(node, inputs=inputs),))


class SizedCalls:
    """entry_at(trace, found, executable, rebuild)   makes the native entry of a body at some sizes
    stencil(trace, found, executable, rebuild, symbols, book)    the same of a template, at any sizes
    settle(planned, args, kwargs, arguments)   told that so many calls in a row had the same sizes

    A plan may give more results than the body, behind the others: memory that these are views of.
    """

    def __init__(
        self, trace: Trace, found: list, sized: Sized, rebuild: Rebuild, live: Sequence[Any],
        entry_at: Callable[[Trace, list, Executable, Rebuild], Any],
        stencil: Callable[[Trace, list, Executable, Rebuild, Sequence[str], Book], Any],
        settle: Callable[[Planned, tuple, dict, tuple], None],
    ):
        (node,) = trace.nodes
        self.sized, self.rebuild = sized, rebuild
        self.found = without_passing(trace, found)  # kept: the tensors of a call are not
        self._entry_at, self._stencil, self._settle = entry_at, stencil, settle
        self._last, self._streak = None, 0
        self._stencils: dict[Template, Stencils] = {}
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
        if isinstance(run, Executable | Planned):
            if instance is not self._last:
                self._last, self._streak = instance, 0
            self._streak += 1
            if self._streak == CALLS_IN_A_ROW and isinstance(run, Planned):
                self._settle(run, args, kwargs, arguments)
            return self._native(instance, run)(*args, **kwargs)
        others = self._others(arguments)
        values = run(others[: len(self.inputs)])
        return self.rebuild.function(*values, *others[len(self.inputs) :])

    def run(self, found: Sequence[Any]) -> Any:
        """The result for the objects of all sources. Raises Fault."""
        instance = self.sized.instance(tuple([found[source] for source in self.symbols]))
        values = instance.run([found[source] for source in self.inputs])[: self.rebuild.values]
        return self.rebuild.function(*values, *(found[source] for source in self.rebuild.sources))

    def _native(self, instance: Instance, run: Executable | Planned) -> Callable:
        known, has_own = instance.entry, self._has_own(instance, run)
        if known is None or known[0] is not self or has_own and instance.calls == CALLS_BEFORE_OWN:
            call = self._stamped(run) if isinstance(run, Planned) and not has_own else None
            if call is None:
                whole = run.executable if isinstance(run, Planned) else run
                call = self._entry_at(self.trace, self.found, whole, self._rebuild(whole)).call
            known = instance.entry = self, call
        return known[1]

    def _has_own(self, instance: Instance, run: Executable | Planned) -> bool:
        """Whether a template at these sizes has tables of its own, because it may become a graph: where its
        sizes have come often enough. Counts the calls."""
        if not isinstance(run, Planned) or run.graphs is None or self.sized.device == "cpu":
            return False
        instance.calls += 1
        return instance.calls >= CALLS_BEFORE_OWN

    def _stamped(self, run: Planned) -> Callable | None:
        """The entry of a template at some sizes, from tables that it shares with others."""
        template = run.template
        stencils = self._stencils.get(template)
        if stencils is None:
            stencils = self._stencils[template] = Stencils(functools.partial(self._tables, template))
        return stencils.at(run.values, run.sizes)

    def _tables(self, template: Template, values: Values) -> EntryStencil:
        executable, book = template.hinted((values, *self.sized.graph.hints))
        return self._stencil(
            self.trace, self.found, executable, self._rebuild(executable), template.plan.symbols, book)

    def _rebuild(self, executable: Executable) -> Rebuild:
        (node,) = self.trace.nodes
        return compile_recipe(node.end.recipe, len(executable.plan.outputs), self.live)


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
    if origin.kind == "member":
        return getattr(*origin.value)
    return (arguments if origin.kind == "argument" else deep)[origin.value]
