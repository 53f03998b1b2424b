"""A variant: one artifact bound to live objects. Its entry checks, runs and rebuilds, or says MISS.

    variant = Variant.bind(artifact, model, (x,), {}, objects)
    variant.entry(x)          the result, or MISS when the call is not this variant's

Binding resolves every source, evaluates every guard once on the live objects and only then makes the
native entry, whose rows say "the memory that decided these guards is as it was". A row that differs
is no verdict: the Python checker decides, and the rows are taken anew when the guards still hold.

Guarantees: an entry that returns MISS has run nothing. A fault found by a kernel (an index out of
range, a division by zero) runs the call as plain Python, where the user's own error arises.
"""

from collections.abc import Callable
from typing import Any

from preheat.base.errors import Unsupported, UserError
from preheat.base.events import emit
from preheat.ir.artifact import Artifact
from preheat.ir.trace import Return
from preheat.run.check import Checker, Failure
from preheat.run.executable import Executable
from preheat.run.interpreted import Interpreted
from preheat.run.library import Fault
from preheat.run.load import load
from preheat.run.recipes import Rebuild, compile_recipe
from preheat.run.resolve import NotThere

MISS: Any = type("Miss", (), {"__slots__": (), "__repr__": lambda self: "<miss>"})()


class CannotBind(Exception):
    """The artifact is not for these objects; the message says which guard or source differs."""


class Variant:
    """Made by `bind`. `entry` is the fastest callable this process and plan allow."""

    def __init__(self, artifact: Artifact, target: Any, checker: Checker, executable: Any, rebuild: Rebuild):
        self.artifact, self.target = artifact, target
        self.checker, self.executable, self.rebuild = checker, executable, rebuild
        (node,) = artifact.trace.nodes
        self._inputs = node.inputs
        self.entry: Callable = self.call

    @classmethod
    def bind(cls, artifact: Artifact, target: Any, args: tuple, kwargs: dict, objects: tuple) -> "Variant":
        """The variant of `artifact` for calls like `target(*args, **kwargs)`. Raises CannotBind."""
        (node,) = artifact.trace.nodes
        assert isinstance(node.end, Return), "this version binds traces of one node"
        try:
            checker = Checker(artifact.trace, target, objects)
            failure = checker.check(args, kwargs)
            if failure is not None:
                raise CannotBind(str(failure))
            executable, results = _executable(artifact)
            rebuild = compile_recipe(node.end.recipe, results, objects)
        except (NotThere, Unsupported, UserError) as why:
            raise CannotBind(str(why)) from why
        return cls(artifact, target, checker, executable, rebuild)

    def why_missed(self, args: tuple, kwargs: dict) -> Failure | None:
        """The guard that a call with these arguments fails, for the report."""
        return self.checker.check(args, kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result of `target(*args, **kwargs)`, guards and plan run from Python; or MISS."""
        found = self.checker.resolve(args, kwargs)
        if isinstance(found, Failure):
            return MISS
        try:
            values = self.executable([found[source] for source in self._inputs])
        except Fault as fault:
            return self.plain(fault, args, kwargs)
        return self.rebuild.function(*values, *(found[source] for source in self.rebuild.sources))

    def plain(self, fault: Exception, args: tuple, kwargs: dict) -> Any:
        """The call as plain Python: compiled code met something that only eager can report."""
        emit("fallback", what=getattr(self.target, "__qualname__", type(self.target).__qualname__), why=str(fault))
        return self.target(*args, **kwargs)


def _executable(artifact: Artifact) -> tuple[Executable | Interpreted, int]:
    """What runs the artifact's body, and how many results it gives."""
    plan, image = artifact.plan, artifact.image
    if plan is None:
        graph = artifact.graph()
        return Interpreted(graph), len(graph.outputs) if graph is not None else 0
    return Executable(plan, load(image) if image is not None and image.code else None), len(plan.outputs)
