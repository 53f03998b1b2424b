"""Walks the nodes of captures in plain Python: guards by the oracle, bodies op by op, no compiler.

    chain = Chain(model)
    chain(x); chain(x)          captures what it does not know, replays the rest, resumes in between
    chain.captures              how often the machine had to watch
"""

import torch

from preheat.base.callers import Raised, caller
from preheat.bridge.interpret import run
from preheat.capture.capture import Limits, capture, interpret, resume
from preheat.ir.points import point_key, renumbered
from preheat.ir.trace import Goto, Host, Return
from preheat.run.check import Checker, Failure
from preheat.run.recipes import compile_recipe
from preheat.run.walk import Points

ENTRY = None


class Chain:
    """`target` by its nodes. `is_closing`: a capture stops where it reaches a known point."""

    def __init__(self, target, is_closing=True, **limits):
        self.target, self.is_closing, self.limits = target, is_closing, Limits(**limits)
        self.places, self.points = {}, Points()
        self.captures = self.replays = self.interpreted = 0
        self.breaks = []

    def __call__(self, *args, **kwargs):
        found = self._replay(ENTRY, self.target, args, kwargs)
        if found is None:
            self.captures += 1
            self.start, self.reached = ENTRY, set()
            return self._take(capture(
                self.target, args, kwargs, limits=self.limits, is_known=self._is_known))
        return self._follow(*found)

    def _is_known(self, point, objects):
        key = point_key(*renumbered(point, objects))
        is_known = key in self.reached or self.points.get(key) is not None
        self.reached.add(key)
        return self.is_closing and is_known

    def _take(self, outcome):
        start = self.start
        for node in outcome.nodes:
            self.places.setdefault(start, []).append(node)
            point = getattr(node.trace.nodes[0].end, "point", None)
            start = point and self.points.at(point, node.objects)
        self.breaks += outcome.breaks
        if outcome.error is not None:
            raise outcome.error
        if outcome.goes_on is None:
            return outcome.result
        point, values = outcome.goes_on
        return self._at(self.points.at(point, outcome.nodes[-1].objects), values)

    def _at(self, place, values):
        found = self._replay(place, None, values, {})
        if found is not None:
            return self._follow(*found)
        self.captures += 1
        self.start, self.reached = place, set()
        return self._take(resume(
            place.point, self._open(place, values), list(values), limits=self.limits,
            is_known=self._is_known))

    def _open(self, place, values):
        point = place.point
        return compile_recipe(point.snapshot, point.slots, place.objects).function(*values)

    def _follow(self, end, given, objects):
        """Goes on behind a node that ended with `given`."""
        if isinstance(end, Return):
            return given
        place = self.points.at(end.point, objects)
        if isinstance(end, Goto):
            return self._at(place, given)
        assert isinstance(end, Host)
        function, args, kwargs, *slots = given
        try:
            answer = caller(*end.where)(function, args, kwargs)
        except BaseException as raised:
            answer = Raised(raised.with_traceback(raised.__traceback__.tb_next.tb_next))
        if type(answer) is not Raised or isinstance(answer.error, Exception):
            return self._at(place, (*slots, answer))
        self.interpreted += 1
        return interpret(end.point, self._open(place, (*slots, None)), [*slots, answer])

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
            given = again.function(*values, *[found[s] for s in again.sources])
            return node.end, given, made.objects
        return None
