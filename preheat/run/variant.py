"""A variant: one artifact bound to live objects. Its entry checks, runs and rebuilds, or says MISS.

    variant = Variant.bind(artifact, model, (x,), {}, objects)
    variant.entry(x)          the result, or MISS when the call is not this variant's

Binding resolves every source, evaluates every guard once on the live objects and only then makes
the native entry, whose rows say "the memory that decided these guards is as it was". A row that
differs is no verdict: the Python checker decides, and the rows are taken anew when the guards still
hold.

Guarantees: an entry that returns MISS has run nothing. A fault found by a kernel (an index out of
range, a division by zero) runs the call as plain Python, from the random state it began with, and
the user's own error arises there.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from preheat.base.collector import paused_collector
from preheat.base.errors import BackendError, InternalError, Unsupported, UserError, is_strict
from preheat.base.events import emit
from preheat.base.identity import identity
from preheat.base.later import later
from preheat.bridge.generators import States
from preheat.ir.artifact import Artifact
from preheat.ir.graph import device_of as graph_device
from preheat.ir.hinted import Book
from preheat.ir.pack import NOTHING, Ahead
from preheat.ir.plan import Image, Plan
from preheat.ir.records import REASONS
from preheat.ir.sized import trace_at
from preheat.ir.spent import spent_by
from preheat.ir.text_trace import ARGUMENTS, items_path, range_path
from preheat.ir.trace import Recipe, Step, Trace
from preheat.ir.training import Backward, Training
from preheat.run.buffers import device_of
from preheat.run.check import Checker, Failure
from preheat.run.device import context
from preheat.run.entry import Entry, EntryStencil, beside, make_entry
from preheat.run.executable import Executable, executable
from preheat.run.interpreted import Interpreted, Waiting
from preheat.run.learning import Learning
from preheat.run.library import Fault
from preheat.run.moved import moved_numbers
from preheat.run.recipes import Rebuild, compile_recipe
from preheat.run.replays import Graphs
from preheat.run.resolve import NotThere
from preheat.run.rows import bind_rows
from preheat.run.sized import CALLS_BEFORE_PLAN, Planned, Sized
from preheat.run.sized_calls import SizedCalls, without_body
from preheat.run.undo import Undo, draws

outside = later("preheat.run.outside")
trained, sized_training = later("preheat.run.trained"), later("preheat.run.sized_training")

MISS: Any = type("Miss", (), {"__slots__": (), "__repr__": lambda self: "<miss>"})()

# A program that changes what its guards read on every call would bind rows on every call: after
# each binding twice as many calls go through the Python checker before the next, at most this many.
_LONGEST_WAIT = 64
# Rows for the items of a dict are taken anew so many times; then Python compares them.
_MOST_LISTS = 5


class CannotBind(Exception):
    """The artifact is not for these objects; the message says which guard or source differs.

    `is_final`: nor for any others, in this process. `moved`: paths of the numbers that differ.
    """

    def __init__(self, why: str, is_final: bool = False, moved: frozenset[str] = frozenset()):
        super().__init__(why)
        self.is_final, self.moved = is_final, moved


def no_runtime() -> None:
    """No native checker and driver."""


class Variant:
    """Made by `bind`. `entry` is the fastest callable that this process and plan allow."""

    def __init__(
        self, artifact: Artifact, target: Any, checker: Checker, objects: tuple,
        runtime: Callable[[], Image | None], plain: Callable | None = None, teach: Callable | None = None,
        specialise: Callable | None = None, graphs: Graphs | None = None,
        backend: str | Callable = "preheat",
    ):
        self.artifact, self.target = artifact, target
        self._signature = artifact.trace.signature
        self._plain_call = _with_others_apart(plain if plain is not None else target, self._signature.rest)
        self.checker, self._objects, self._made_runtime = checker, objects, runtime
        self._teach, self._specialise, self._lesson = teach, specialise, None
        self._graphs, self._backend = graphs, backend
        self.executable: Any = None
        self.rebuild: Rebuild | None = None
        self._entry: Entry | None = None
        self._unchecked: Entry | None = None  # without the guards that Python has just judged
        self._rows: Any = None
        self._sized: SizedCalls | None = None
        self._settled: Callable | None = None  # the entry for the sizes that calls have in a row
        self._undo = Undo(_device(artifact)) if draws(artifact) else None  # the body stays the same
        self._wait, self._waited = 1, 0
        self._restless, self._fleeting = -1, frozenset[int]()  # sources: see `Rows.restless`
        # dicts that change from call to call, by id, and how often rows for their items were taken
        # anew
        self._changing: dict[int, tuple[dict, int]] = {}
        self.announce: Callable[[Callable], None] | None = None  # told each new entry
        self.keep: Callable[[Artifact], None] | None = None  # told each new artifact
        self.may_compile: Callable[[], bool] = lambda: True  # whether plans may be made of sizes

    @classmethod
    def bind(
        cls, artifact: Artifact, target: Any, args: tuple, kwargs: dict, objects: tuple,
        runtime: Callable[[], Image | None] = no_runtime, *, plain: Callable | None = None,
        specialise: Callable | None = None,
        teach: Callable | None = None,
        graphs: Graphs | None = None,
        backend: str | Callable = "preheat",
    ) -> "Variant":
        """The variant of `artifact` for calls like `target(*args, **kwargs)`. Raises CannotBind, and
        BackendError where the backend is a callable that fails.

        objects   the live objects that the trace names; runtime: gives the native checker and driver, when they are
        needed; without them guards and plan run from Python
        plain     what runs a call whose node met a fault, in place of `target`
        specialise  makes the plan of a graph at sizes that come again: see `sized.py`
        teach     makes the lesson of a differentiable artifact, see `run/learning.py`
        graphs    what may be recorded as CUDA graphs, see `run/replays.py`; None for nothing
        backend   a callable: what compiles the body, see `run/outside.py`
        """
        try:
            checker = Checker(artifact.trace, target, objects)
            args = artifact.trace.signature.packed(args)
            found = checker.resolve(args, kwargs)
            if isinstance(found, Failure):
                raise CannotBind(str(found), moved=_moved(checker, found, args, kwargs))
            variant = cls(
                artifact, target, checker, objects, runtime, plain, teach, specialise, graphs, backend)
            variant._take(artifact, found)
        except BackendError:
            raise
        except (NotThere, Unsupported, UserError) as why:
            raise CannotBind(str(why), is_final=not isinstance(why, NotThere)) from why
        variant._bind_entry(found, (*args, *kwargs.values()))
        return variant

    @functools.cached_property
    def _runtime(self) -> Image | None:
        return self._made_runtime()

    @property
    def entry(self) -> Callable:
        """A callable like `target`, which returns MISS when the call is not this variant's."""
        call = self._entry.call if self._settled is None else _either(self._settled, self._entry.call)
        call = call if self._undo is None else self._undo.around(call)
        return _with_others_packed(call, self._signature.rest)

    def set_patience(self, calls: int = CALLS_BEFORE_PLAN) -> None:
        """After how many calls at the same sizes a body whose sizes change gets a plan for them, and one
        that waits its own."""
        if isinstance(self.executable, Sized | Waiting):
            self.executable.patience = calls

    @property
    def name(self) -> str:
        """What people call the target."""
        return getattr(self.target, "__qualname__", type(self.target).__qualname__)

    @property
    def is_native(self) -> bool:
        return self._entry.is_native

    def moved_numbers(self, args: tuple, kwargs: dict) -> frozenset[str]:
        """The paths of the numbers for which a call with these arguments is not this variant's."""
        args = self._signature.packed(args)
        failure = self.checker.check(args, kwargs)
        return frozenset() if failure is None else _moved(self.checker, failure, args, kwargs)

    def why_missed(self, args: tuple, kwargs: dict) -> Failure | None:
        """The guard that a call with these arguments fails, for the report."""
        return self.checker.check(self._signature.packed(args), kwargs)

    def _take(self, artifact: Artifact, found: Sequence[Any]) -> None:
        """What runs the body from now on, for the objects `found`."""
        (node,) = artifact.trace.nodes
        training, objects = artifact.training, self._objects
        self.artifact = artifact
        if callable(self._backend) and (graph := artifact.graph()) is not None:
            self.executable = outside.Outside(
                graph, self._backend, self.name, [found[source] for source in node.inputs],
                lambda: self.may_compile())
            self.rebuild = compile_recipe(node.end.recipe, len(graph.outputs), objects)
            return
        if training is None:
            is_grad_off = torch.is_grad_enabled() and any(
                _needs_grad(found[source]) for source in node.inputs)
            self.executable, results = _executable(
                artifact, is_grad_off, self._specialise, self._graphs)
            self.rebuild = compile_recipe(node.end.recipe, results, objects)
            return
        rebuild = compile_recipe(node.end.recipe, len(training.wiring.exits), objects)
        graph = artifact.graph() if artifact.plan is None else None
        if graph is not None and graph.symbols:
            self.executable, self.rebuild = sized_training.SizedTraining(
                graph, training, self.lesson, self._random_state, self._taught,
                lambda: self.may_compile(), self._runtime, self.name), rebuild
        elif artifact.plan is None:
            self.executable, self.rebuild = Learning(training, self.lesson), rebuild
        else:
            self.executable = executable(
                artifact.plan, artifact.image, torch.is_grad_enabled(), is_lean=True,
                graphs=self._graphs, unseen=artifact.unseen)
            self.rebuild = trained.joined(
                trained.Trained(training, self._compiled_backward, self.lesson, self._random_state, self._relearn,
                                self.name),
                rebuild, len(artifact.plan.outputs), node.inputs)

    def _compiled_backward(self, half: Backward) -> Callable:
        return trained.compiled_backward(half, self._runtime, self._graphs)

    def _taught(self, training: Training) -> None:
        """More is known of a body whose sizes change."""
        self.artifact = replace(self.artifact, training=training)
        if self.keep is not None:
            self.keep(self.artifact)

    def lesson(self) -> Any:
        """The body, for what is to be learned of it (`differentiate.Lesson`)."""
        if self._lesson is None:
            self._lesson = self._teach(self.artifact)
        return self._lesson

    def _random_state(self) -> States | None:
        """Where the generators stood when the present call began."""
        return self._undo.state() if self._undo is not None else None

    def _relearn(self) -> None:
        """The next call compiles what has been recorded meanwhile."""
        training = self.artifact.training
        self.executable = Learning(training, self.lesson, is_compiled=True)
        self._rows = None
        self._entry = self._make_entry([], None)
        if self.announce is not None:
            self.announce(self.entry)

    def _learned(self, found: Sequence[Any], arguments: tuple) -> None:
        """Compiles what has been learned; what cannot be compiled goes on op by op, reported."""
        ahead, rows = Ahead(), None

        def is_planned(plans: Sequence[Plan]) -> None:  # there is time until their kernels are compiled
            nonlocal rows
            known = self._lesson.training
            ahead.add(noun for noun in (self.artifact.trace, known.forward, *known.joints, *plans) if noun is not None)
            rows = self._bound_rows(found, arguments)

        try:
            plan, image, training = self.lesson().compiled(self.name, is_planned=is_planned)
        except Exception as why:
            if is_strict() and not isinstance(why, Unsupported):
                raise
            emit("fallback", what=f"the gradients of {self.name}", why=str(why))
            self.executable.is_final = True
            return
        self._lesson.training = training
        self._replaced(
            replace(self.artifact, plan=plan, image=image, training=training), found, arguments, ahead, rows)

    def _planned(self, found: Sequence[Any], arguments: tuple) -> None:
        """Makes the plan that has waited; where there can be none, reported, it stays op by op."""
        made = self._specialise(self.executable.graph)
        self._replaced(replace(
            self.artifact, is_waiting=False, **dict(zip(("plan", "image"), made or ()))), found, arguments)

    def _replaced(
        self, artifact: Artifact, found: Sequence[Any], arguments: tuple, ahead: Ahead = NOTHING, rows: Any = None,
    ) -> None:
        """`artifact` is the variant's from here on: stored, bound to these objects and told. What has been made of
        it before: bytes of its nouns, and rows for the objects."""
        self._take(artifact, found)
        if self.keep is not None:
            self.keep(self.artifact, ahead)
        self._bind_entry(found, arguments, rows)
        if self.announce is not None:
            self.announce(self.entry)

    def _bound_rows(self, found: Sequence[Any], arguments: tuple, is_judged: bool = False) -> Any:
        """Rows for the objects `found`; None where nothing is native."""
        if self._runtime is None:
            return None
        with paused_collector():
            return bind_rows(
                self.checker, found, arguments, fleeting=self._fleeting,
                changing=[space for space, _ in self._changing.values()],
                unlisted=[space for space, times in self._changing.values() if times > _MOST_LISTS],
                is_judged=is_judged)

    def _bind_entry(self, found: list, arguments: tuple, rows: Any = None) -> None:
        """Rows, if they are not there yet, and a native entry for the objects `found`, which every guard accepts."""
        self._settled = None
        is_sized = isinstance(self.executable, Sized)
        is_native = isinstance(self.executable, Executable | Sized) and self._runtime is not None
        self._rows = (rows or self._bound_rows(found, arguments, is_sized)) if is_native else None
        if is_sized and is_native:
            self._sized = SizedCalls(self.artifact.trace, found, self.executable, self.rebuild,
                                     self.checker.objects, self._entry_at, self._stencil,
                                     self._settle)
            self._entry = make_entry(
                without_body(self.artifact.trace), found, self._rows, _IDLE, _NO_RESULT, self._slow,
                runtime=self._runtime, context=context(), live=self.checker.objects, miss=MISS)
            return
        self._entry = self._make_entry(found, self._rows)
        if self._rows is not None and self._rows.in_python:
            self._unchecked = beside(self._entry, self._rows.native(), self._runtime)

    def _make_entry(self, found: list, rows: Any) -> Entry:
        return make_entry(
            self.artifact.trace, found, rows, self.executable, self.rebuild, self._slow,
            runtime=self._runtime if rows is not None else None, context=context() if rows is not None else None,
            live=self.checker.objects, miss=MISS)

    def _slow(self, reason: int, detail: int, arguments: tuple, names: tuple) -> Any:
        """What the entry calls when a row differs, a kernel found a fault, or the call looks
        unusual."""
        split = len(arguments) - len(names)
        args, kwargs = arguments[:split], dict(zip(names, arguments[split:]))
        why = REASONS[reason]
        if why == "fault":
            what = "a kernel found an index out of range or a division by zero"
            if not detail:  # the error flag is of kernels
                what = "a library call failed or gave another layout, or a tensor is not aligned"
            return self._plain(Fault(what, detail), args, kwargs)
        if why == "late_fault":
            raise InternalError(
                f"{self.target!r}: a check failed after an input was written (flag {detail})")
        if self._rows is not None and why == "guard":
            if self._rows.is_python(detail):
                failure = self._rows.check_python(args, kwargs)
                if failure is None and self._sized is not None:
                    return self._call_sized(args, kwargs, arguments)
                if failure is None:
                    return self._unchecked.call(*args, **kwargs)
                if self._rows.is_verdict(failure):
                    return MISS
            if self._rows.repair(detail):
                self._follow_changes(detail, args, kwargs, arguments)
                return self._entry.call(*args, **kwargs)
            if self._rows.refutes(detail, args, kwargs):
                return MISS
        found = self.checker.resolve(args, kwargs)
        if isinstance(found, Failure):
            return MISS
        if isinstance(self.executable, Learning):
            if self.executable.is_final:  # nested graphs cost several times what eager does
                return self._plain_call(*args, **kwargs)
            if self.executable.is_ready:
                self._learned(found, arguments)
        elif isinstance(self.executable, Waiting):
            if self.executable.is_ready and self.may_compile():
                self._planned(found, arguments)
        elif self._rows is not None and not self._rows.is_python(detail):
            space = self._rows.items.get(detail) if why == "guard" else None
            if space is not None and self._note_change(space):
                self._bind_anew(found, arguments)
            else:
                restless = self._rows.restless(detail) if why == "guard" else -1
                self._bind_again(found, arguments, restless)
        try:
            if self._sized is not None:
                return self._sized.run(found)
            return self._entry.run(found)
        except Fault as raised:
            fault = raised
        return self._plain(fault, args, kwargs)  # the user's error has no context of ours

    def _call_sized(self, args: tuple, kwargs: dict, arguments: tuple) -> Any:
        """A call that all guards accept, at its sizes."""
        try:
            return self._sized.call(args, kwargs, arguments)
        except Fault as raised:
            fault = raised
        return self._plain(fault, args, kwargs)

    def _entry_at(
        self, trace: Trace, found: list, executable: Executable, rebuild: Rebuild,
    ) -> Entry:
        """The native entry of the body at some sizes, for who has checked all other guards."""
        return make_entry(
            trace, found, self._rows.native(), executable, rebuild, self._slow_at,
            runtime=self._runtime, context=context(), live=self.checker.objects, miss=MISS)

    def _stencil(
        self, trace: Trace, found: list, executable: Executable, rebuild: Rebuild,
        symbols: Sequence[str], book: Book,
    ) -> EntryStencil:
        """As `_entry_at`, of the body at any sizes."""
        return EntryStencil(
            trace, found, self._rows.native(), executable, rebuild, self._slow_at, symbols, book,
            runtime=self._runtime, context=context(), live=self.checker.objects, miss=MISS)

    def _settle(self, planned: Planned, args: tuple, kwargs: dict, arguments: tuple) -> None:
        """Tries an entry for these sizes alone before all others from now on, if there can be one."""
        checker = Checker(
            trace_at(self._sized.trace, planned.sizes), self.target, self._objects)
        found = checker.resolve(args, kwargs)
        if isinstance(found, Failure):
            return
        rows = bind_rows(
            checker, found, arguments, fleeting=self._fleeting,
            changing=[space for space, _ in self._changing.values()])
        if rows.in_python:
            return
        (node,) = self.artifact.trace.nodes
        run = planned.executable
        rebuild = compile_recipe(node.end.recipe, len(run.plan.outputs), self._objects)
        self._settled = make_entry(
            checker.trace, found, rows, run, rebuild, self._slow_settled, runtime=self._runtime,
            context=context(), live=checker.objects, miss=MISS).call
        if self.announce is not None:
            self.announce(self.entry)

    def _slow_settled(self, reason: int, detail: int, arguments: tuple, names: tuple) -> Any:
        """As `_slow`, of an entry behind which there is another one."""
        return MISS if REASONS[reason] == "guard" else self._slow(reason, detail, arguments, names)

    def _slow_at(self, reason: int, detail: int, arguments: tuple, names: tuple) -> Any:
        """As `_slow`, of the entry at some sizes: its rows have just been met."""
        split = len(arguments) - len(names)
        if REASONS[reason] == "guard":
            found = self.checker.resolve(arguments[:split], dict(zip(names, arguments[split:])))
            return MISS if isinstance(found, Failure) else self._sized.run(found)
        return self._slow(reason, detail, arguments, names)

    def _bind_again(self, found: list, arguments: tuple, restless: int) -> None:
        """The guards hold on other memory than the rows say: takes it from now on.

        restless   the source of an argument's object that is another one than at the last binding;
                   the second time in a row Python follows it from now on
        """
        if self._is_due():
            if restless >= 0 and restless == self._restless:
                self._fleeting |= {restless}
                self._wait, restless = 1, -1
            self._restless = restless
            self._bind_anew(found, arguments)

    def _follow_changes(self, row: int, args: tuple, kwargs: dict, arguments: tuple) -> None:
        """The dict whose version `row` compares changed, and nothing that was read of it: from now
        on rows compare its items, if there can be any."""
        space = self._rows.versions[row]
        if identity(space) not in self._changing and self._note_change(space):
            found = self.checker.resolve(args, kwargs)
            if not isinstance(found, Failure):
                self._bind_anew(found, arguments)

    def _note_change(self, space: dict) -> bool:
        """Whether rows for the items of `space` are to be taken, once more."""
        _, times = self._changing.get(identity(space), (space, 0))
        self._changing[identity(space)] = space, times + 1
        return times <= _MOST_LISTS

    def _is_due(self) -> bool:
        """Whether enough calls went through Python since the last binding for another one."""
        self._waited += 1
        if self._waited < self._wait:
            return False
        self._wait, self._waited = min(2 * self._wait, _LONGEST_WAIT), 0
        return True

    def _bind_anew(self, found: list, arguments: tuple) -> None:
        self._bind_entry(found, arguments)
        if self._changing:  # a dict that is read no longer is not kept alive
            read = {*map(identity, self._rows.versions.values()), *map(identity, self._rows.items.values())}
            self._changing = {key: row for key, row in self._changing.items() if key in read}
        if self.announce is not None:
            self.announce(self.entry)

    def _plain(self, fault: Exception, args: tuple, kwargs: dict) -> Any:
        """The call as plain Python: compiled code met something that only eager can report."""
        emit("fallback", what=self.name, why=str(fault))
        if self._undo is not None:
            self._undo.restore()
        result = self._plain_call(*args, **kwargs)
        if isinstance(fault, outside.BackendFault):
            fault.tell()  # the program itself did not raise
        return result


def _either(first: Callable, second: Callable) -> Callable:
    """What `first` gives, or `second` where the call is not its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = first(*args, **kwargs)
        return second(*args, **kwargs) if result is MISS else result

    return call


def _with_others_packed(call: Callable, rest: int) -> Callable:
    """`call`, given the positional arguments from `rest` on as one tuple."""
    if rest < 0:
        return call
    return lambda *args, **kwargs: call(*args[:rest], args[rest:], **kwargs)


def _with_others_apart(call: Callable, rest: int) -> Callable:
    """`call`, given as positional arguments what is in the tuple at `rest`."""
    if rest < 0:
        return call
    return lambda *args, **kwargs: call(*args[:rest], *args[rest], **kwargs)


def moved_for(
    variants: Sequence[Variant], waiting: Iterable[frozenset[str]], args: Sequence, kwargs: Mapping,
) -> frozenset[str]:
    """What moved for any of several variants: see `moved.py`; `waiting`: for those that could not be bound.
    At its third length all of a list moves, "log[:]", and so does a range by a number that was pinned: "range(n)"."""
    moved = [one.moved_numbers(tuple(args), dict(kwargs)) for one in variants]
    found = collections.Counter(path for paths in (*moved, *waiting) for path in paths)
    if any(one.artifact.trace.signature.rest >= 0 for one in variants):
        found[_COUNT] += 2
    lists = (path for path, count in found.items() if count > 1 and path.startswith("len("))
    bounds = (range_path(path) for path, count in found.items() if count > 1 and not path.startswith(("len(", "keys(", "turns(")))
    return frozenset(found).union((items_path(path[len("len("):-1]) for path in lists), bounds)


_COUNT = f"len({ARGUMENTS})"
_OF_NUMBERS = frozenset(("value", "len", "tensor", "class", "keys", "contains"))


def _moved(checker: Checker, failure: Failure, args: tuple, kwargs: dict) -> frozenset[str]:
    guard, signature = failure.guard, checker.trace.signature
    if signature.rest < 0 and len(args) != signature.positional and tuple(kwargs) == signature.keywords:
        return frozenset((_COUNT,))
    is_test = guard is not None and guard.kind == "is" and (
        checker.trace.sources[guard.source].kind == "number")
    is_number = is_test or guard is not None and guard.kind in _OF_NUMBERS
    if is_number or spent_by(checker.trace) is not None:  # the next call of an optimizer is the same with other numbers
        return moved_numbers(checker, args, kwargs)
    return frozenset()


# What runs where a program computes no tensor: nothing, but natively.
_NOTHING = Plan(inputs=(), buffers=(), kernels=(), calls=(), outputs=())
_IDLE = Executable(_NOTHING, None)
_NO_RESULT = compile_recipe(Recipe((Step("const", (None,)),), 0), 0)


def _executable(
    artifact: Artifact, is_grad_off: bool, specialise: Callable | None, graphs: Graphs | None,
) -> tuple[Executable | Interpreted | Sized, int]:
    """What runs the artifact's body, and how many results it gives."""
    plan = artifact.plan
    if plan is None or plan.symbols:
        graph = artifact.graph()
        if graph is not None and graph.symbols:  # op by op where gradients cannot be told apart
            template = (plan, artifact.image) if plan is not None else None
            made = Sized(graph, None if graph.grads else specialise, template, graphs, is_grad_off)
            return made, len(graph.outputs)
        if graph is not None:
            is_waiting = artifact.is_waiting and specialise is not None
            return (Waiting if is_waiting else Interpreted)(graph), len(graph.outputs)
        plan = _NOTHING
    made = executable(plan, artifact.image, is_grad_off, graphs=graphs, unseen=artifact.unseen)
    return made, len(plan.outputs)


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _device(artifact: Artifact) -> str:
    """Where the body runs."""
    if artifact.plan is not None:
        return device_of(artifact.plan)
    graph = artifact.graph()
    return "cpu" if graph is None else graph_device(graph)
