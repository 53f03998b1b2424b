"""Walks the nodes of captures in plain Python: guards by the oracle, bodies op by op, no compiler.

    chain = Chain(model)
    chain(x); chain(x)          captures what it does not know, replays the rest, resumes in between
    chain.captures              how often the machine had to watch
"""

import torch

from preheat.bridge.interpret import run
from preheat.capture.capture import Limits, capture, interpret, resume
from preheat.ir.trace import Goto, Host, Return
from preheat.run.check import Checker, Failure
from preheat.run.recipes import compile_recipe

ENTRY = None


class Chain:
    """`target` by its nodes. `is_closing`: a capture stops where it reaches a known point."""

    def __init__(self, target, is_closing=True, **limits):
        self.target, self.is_closing, self.limits = target, is_closing, Limits(**limits)
        self.places = {}
        self.captures = self.replays = self.interpreted = 0
        self.breaks = []

    def __call__(self, *args, **kwargs):
        self.nodes_here = 0
        found = self._replay(ENTRY, self.target, args, kwargs)
        if found is None:
            self.captures += 1
            return self._take(capture(
                self.target, args, kwargs, limits=self.limits, is_known=self._is_known))
        return self._follow(*found)

    def _is_known(self, point, values):
        return self.is_closing and point in self.places

    def _take(self, outcome):
        for node in outcome.nodes:
            self.places.setdefault(node.start, []).append(node)
        self.breaks += outcome.breaks
        if outcome.error is not None:
            raise outcome.error
        if outcome.goes_on is None:
            return outcome.result
        return self._at(*outcome.goes_on)

    def _at(self, point, values):
        found = self._replay(point, None, values, {})
        if found is not None:
            return self._follow(*found)
        self.captures += 1
        opened = self._open(point, values)
        return self._take(resume(
            point, opened, values, limits=self.limits, is_known=self._is_known))

    def _open(self, point, values):
        objects = next(
            node.objects for nodes in self.places.values() for node in nodes
            if getattr(node.trace.nodes[0].end, "point", None) is point)
        return compile_recipe(point.snapshot, point.slots, objects).function(*values)

    def _follow(self, end, given):
        """Goes on behind a node that ended with `given`."""
        if isinstance(end, Return):
            return given
        if isinstance(end, Goto):
            return self._at(end.point, given)
        assert isinstance(end, Host)
        function, args, kwargs, *slots = given
        try:
            answer = function(*args, **kwargs)
        except BaseException as raised:
            error = raised
        else:
            return self._at(end.point, (*slots, answer))
        self.interpreted += 1
        return interpret(end.point, self._open(end.point, (*slots, None)), (*slots, None), error)

    def _replay(self, start, target, args, kwargs):
        for made in reversed(self.places.get(start, ())):
            found = Checker(made.trace, target, made.objects).resolve(args, kwargs)
            if isinstance(found, Failure):
                self.failure = found
                continue
            (node,) = made.trace.nodes
            self.replays += 1
            values = []
            if node.body is not None:
                with torch.no_grad():
                    values = run(node.body, [found[source] for source in node.inputs])
            again = compile_recipe(node.end.recipe, len(values), made.objects)
            return node.end, again.function(*values, *[found[s] for s in again.sources])
        return None
