"""The watcher: sees what a program reads, calls and writes, and turns it into nodes.

Reads of outside objects become guards (`guards.py`), writes to them effects (`effects.py`); calls
into C are judged by `policies.py`; ops are recorded by the dispatch mode meanwhile. A call that no
row allows, a look at a tensor's value: it becomes a host call, which ends the node (`nodes.py`) and
is done again on every call. What cannot be had so gives up with a row of `reasons.py`, and the
program goes on for real.

An object is from outside exactly if it is in `known`, or is a class, function or module that the
call did not make. Objects made by the call may be read and written freely: recipes rebuild them.
Once one was given away, to a host call or to an outside object, it is from outside for the nodes
that follow.
"""

import operator
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from preheat.base.identity import identity
from preheat.base.names import class_of, raw_attribute
from preheat.bridge.ambient import why_aside
from preheat.bridge.calls import LIBRARY_FOLDERS, reads_memory
from preheat.bridge.tensors import Tensor
from preheat.capture.boxing import Boxing
from preheat.capture.effects import BLIND, Effects, consumed
from preheat.capture.frames import Frame
from preheat.capture.guards import Guards
from preheat.capture.identities import has_identity
from preheat.capture.iterators import feeds
from preheat.capture.looks import HASHING, TAKING_ALL, Looks
from preheat.capture.loops import Loops
from preheat.capture.nodes import Nodes, Stop, break_at, changing_keys, moving_lists, own_float
from preheat.capture.numbers import TOLD
from preheat.capture.observer import ABSENT, NOT_DONE, GiveUp, Observer
from preheat.capture.policies import is_fresh_iterator, is_native, policy
from preheat.capture.reads import Reads, is_opaque_member
from preheat.capture.raises import Raises
from preheat.capture.recorder import Recorder
from preheat.capture.regions import Regions
from preheat.capture.snapshots import frames_of, with_bodies
from preheat.capture.sources import Sources
from preheat.ir.graph import Graph
from preheat.ir.scalar import Scalar
from preheat.ir.text_trace import without_items
from preheat.ir.trace import Break, Point

_MOVERS = frozenset((iter, next, len, reversed))  # operators that look at no element
_COMPARERS = frozenset((
    operator.contains, operator.getitem, operator.setitem, operator.delitem, operator.eq, operator.ne))
_WRITERS = frozenset((operator.setitem, operator.delitem))
# What no host call can stand for: the state it leaves cannot be gone on from.
_NOT_HOSTED = frozenset((
    "modified_saved", "own_gradient", "limit_ops", "limit_guards", "limit_nodes", "bytecodes", "fault", "foreign_state",
    "inference_mode_inside", "no_snapshot", "host_raised", "impure_region",
))
_COMPARING = frozenset(("sort", "remove"))  # methods that compare elements
_HASHED_DISPLAYS = frozenset(("dict", "set"))


class Watcher(Reads, Raises, Looks, Loops, Boxing, Observer):
    """Collects sources, guards, ops and effects of the node under way; `nodes` has those before it.

    `gave` says why and where it gave up. `made` has the functions and classes that the call made,
    each with the function that made it.
    """

    def __init__(
        self, limits: Any, is_inference: bool, is_known: Callable = lambda *_: False,
        dynamic: frozenset[str] = frozenset(),
    ):
        super().__init__()
        self.limits = limits
        self.sources = Sources(self.known, self.numbers)
        self.guards = Guards(self.sources, limits.max_guards)
        self.guards.dynamic = without_items(dynamic) if limits.is_whole else dynamic
        self.effects = Effects()
        self.recorder = Recorder(
            self.known_source, self.note, self.live_source, self.tested, limits.max_ops,
            self.number_source, self.outside_type, limits.random == "generated")
        self.begin_recording(has_tests=True)
        self.nodes = Nodes(self, is_known)
        self.machine: Any = None
        self.bytecode_limit = limits.max_bytecodes
        self.is_inference = is_inference
        self.failure: tuple[str, str] | None = None
        self.gave: tuple[str, str, str, int] | None = None
        self._performed: Any = NOT_DONE  # result of the present call into C
        self._raised: Any = NOT_DONE  # its exception
        self.answer: Any = NOT_DONE  # of the host call that the resumed instruction makes
        self.answered = -1  # the instant of the last instruction that made a host call
        self._acted = -1  # the instant of the last instruction that did anything
        self._is_stale = False  # a tensor's memory was exchanged: the next op belongs to a new node
        self._shown, self.fixed, self.missed = {}, None, {}
        self.made: dict[int, tuple[Any, Any]] = {}
        self._entered: dict[int, Any] = {}
        self._behind: dict[int, tuple[Any, Any]] = {}  # made read-only views, and their mappings
        self._locks: dict[int, int] = {}  # locks taken and not yet released
        self.regions = Regions(self)
        # context variables that the node has set and not reset, by token: (variable, value, token)
        self.contexts: dict[int, tuple[Any, Any, Any]] = {}

    # ------------------------------------------------------------------ the recorder's questions
    def known_source(self, tensor: Any) -> int | None:
        return self.known.get(identity(tensor))

    def number_source(self, scalar: Scalar) -> int:
        return self.sources.number(scalar)

    def live_source(self, tensor: Any) -> int:
        return self.sources.of(tensor)

    def tested(self, graph: Graph, inputs: tuple[int, ...], answer: bool) -> None:
        """The program branches on a bool that follows from inputs by the ops of `graph`."""
        self.guards.claim(-1, "test", (graph, inputs, answer), graph)

    def note(self, reason: str, detail: str) -> None:
        """The recorder cannot go on; a C function is running, so this waits for the next hook."""
        self.failure = (reason, detail)

    def check(self, result: Any = NOT_DONE) -> None:
        """Gives up if the recorder noted a failure. `result`: of the call just performed."""
        if self.failure is not None:
            raise GiveUp(*self.failure, result)

    def gave_up(self, reason: str, detail: str, file: str, line: int) -> None:
        if self.gave is None:
            self.gave, self.failure = (reason, detail, file, line), (reason, detail)
            self.regions.gave_up(reason, detail)
            self.recorder.leave()
        self.refuse_if_whole()

    def is_library(self, file: str) -> bool:
        return file.startswith(LIBRARY_FOLDERS)

    def is_made(self, value: Any) -> bool:
        """Whether the call made this class or function."""
        return identity(value) in self.made

    def is_outside(self, value: Any) -> bool:
        """Whether `value` existed before the call."""
        if identity(value) in self.known:
            return True
        kind = type(value)
        return has_identity(value, kind) and identity(value) not in self.made

    # ------------------------------------------------------------------ functions
    def attached(self, machine: Any) -> None:
        self.machine = machine

    def is_native(self, function: Any) -> bool | types.FunctionType:
        found = is_native(function)
        if found and found is not True and function.__dict__.get("__wrapped__") is found:
            self.entered(function)
            self.guards.wrapped(function)
        return found

    def native_function(self, function: Any, why: str) -> None:
        """Judged by `c_call`: no row allows it, so it is a host call."""

    def entered(self, function: Any) -> None:
        if identity(function) not in self._entered and not self._is_own(function):
            self._entered[identity(function)] = function
            self.guards.function(function)

    def _is_own(self, function: Any) -> bool:
        """Whether the call made `function` and has not given it away."""
        return identity(function) in self.made and identity(function) not in self.known

    # ------------------------------------------------------------------ truth
    def test_truth(self, value: Any) -> bool:
        if self.answer is not NOT_DONE:
            return self.take_answer()
        kind = type(value)
        if not issubclass(kind, Tensor):
            if raw_attribute(kind, "__bool__") is None and raw_attribute(kind, "__len__") is None:
                return True
            given = None
            try:
                self.look(value, 0)
            except GiveUp as raised:
                given = raised.bare()
            if given is not None:
                return self._host(given, self._mark(), bool, (value,), {})
        elif not self.recorder.is_fixed(value) and self.recorder.test_of(value) is None:
            given = GiveUp("data_dependent_branch", "the truth of a tensor")
            return self._host(given, self._mark(), bool, (value,), {})
        mark = self._mark()
        answer = self.perform(bool, (value,), {})
        if self.failure is not None:
            return self._host(GiveUp(*self.failure, answer), mark, bool, (value,), {})
        return answer

    # ------------------------------------------------------------------ births and writes
    def born(self, value: Any, kind: str) -> None:
        self.regions.born(value)
        if kind in ("class", "function"):
            maker = self.machine.frame.function if kind == "function" else None
            self.made[identity(value)] = value, maker
        elif kind in _HASHED_DISPLAYS:
            for key in value:
                if type(key) is not str:
                    self.compare(key)

    def write_attribute(self, owner: Any, name: str, value: Any) -> None:
        if not self.is_written(owner):
            return
        namespace = self.guards.own_namespace(owner, name)
        if issubclass(type(owner), type):
            self.effects.class_written(owner, name, value)
        elif namespace is not None:
            self.effects.entry(namespace, name, value, name not in namespace)
        elif issubclass(type(owner), Tensor) and name != "grad":
            self._is_stale = True  # t.data = other: ops that follow see other memory
        else:
            self.effects.entry(owner, name, value)
        self.effects.add("write", owner, name, value)

    def delete_attribute(self, owner: Any, name: str) -> None:
        if not self.is_written(owner):
            return
        namespace = self.guards.own_namespace(owner, name)
        if issubclass(type(owner), type):
            self.effects.class_written(owner, name, ABSENT)
        elif namespace is not None:
            self._must_have(namespace, name, lambda: self.read_attribute(
                owner, namespace, name, namespace[name]))
            self.effects.entry(namespace, name, ABSENT)
        else:
            raise GiveUp("write_outside", f"deletes {class_of(owner).__qualname__}.{name}")
        self.effects.add("delete", owner, name)

    def write_item(self, container: Any, key: Any, value: Any) -> None:
        if issubclass(type(container), Tensor):
            return  # an op, judged by `operate`
        if self.is_written(container):
            self._can_write_item(container, key)
            is_new = isinstance(container, dict) and not dict.__contains__(container, key)
            self.effects.entry(container, key, value, is_new)
            self.effects.add("setitem", container, key, value)
        self.compare(key)

    def _can_write_item(self, container: Any, key: Any) -> None:
        """A list is as long as it was, so that the index is in range again."""
        if not isinstance(container, dict):
            if self.effects.has_changed(container):
                self.go_on("own_write_read", f"writes to a {type(container).__qualname__} that it changed")
            self.guards.length(container, len(container))
            if type(key) is not int or key < 0:
                self.effects.changed(container)

    def delete_item(self, container: Any, key: Any) -> None:
        if not self.is_written(container):
            return
        if isinstance(container, dict):
            if dict.__contains__(container, key):
                self._must_have(container, key, lambda: self.read_item(
                    container, key, dict.__getitem__(container, key)))
            self.effects.entry(container, key, ABSENT)
        else:
            self._can_write_item(container, key)
            self.effects.changed(container)
        self.effects.add("delitem", container, key)

    def _must_have(self, container: dict, key: Any, read: Callable) -> None:
        """What is deleted was there before the node, or the node itself has put it there."""
        if key in container and self.effects.value(container, key) is NOT_DONE:
            read()

    def write_cell(self, cell: Any, value: Any) -> None:
        if self.is_written(cell):
            self.effects.entry(cell, None, value)
            if value is ABSENT:
                self.effects.add("empty_cell", cell)
            else:
                self.effects.add("set_cell", cell, value)

    def write_global(self, namespace: dict, name: str, value: Any) -> None:
        self.act()
        self.guards.global_namespace(namespace)
        if value is ABSENT:
            self._must_have(namespace, name, lambda: self.read_global(
                namespace, name, namespace[name]))
            self.effects.add("delitem", namespace, name)
        else:
            self.effects.add("setitem", namespace, name, value)
        self.effects.entry(namespace, name, value, name not in namespace)

    def mutate(self, container: Any, method: str, args: tuple, kwargs: dict) -> None:
        if self.is_written(container):
            self.effects.changed(container)
            self.effects.add("mutate", container, method, consumed(method, args), kwargs)
        if method in _COMPARING:
            self.look(container, 0)
        if self.numbers:
            self.mutate_with_numbers(method, args, kwargs)
        if method in HASHING and args:
            self.compare(args[0])  # the key; what is stored behind it is not looked at
        for arg in (*args, *kwargs.values()):
            if method in TAKING_ALL:
                self.shallow(arg)
                if not issubclass(type(container), (list, deque)):
                    self.hashed(arg)

    def is_opaque_member(self, owner: Any, name: str, value: Any) -> bool:
        return is_opaque_member(owner, name, value)

    def is_opaque(self, container: Any, method: str, args: tuple, kwargs: dict) -> bool:
        """Methods that give something of an outside container, or may fail, are host calls."""
        if self.asks_python(container, method, args) or (
                self.numbers and method in HASHING and args and self.is_keyed(container, args[0])):
            return True
        if not self.is_outside(container):
            return any(map(self.guards.is_moving_list, args))
        return method not in BLIND or consumed(method, args) is None

    def is_written(self, owner: Any) -> bool:
        """Whether a write to `owner` is an effect: it is from outside, or a tensor (whose Python
        attributes no recipe rebuilds). The instruction has then acted."""
        self.act()
        self.regions.written(owner)
        return self.is_outside(owner) or issubclass(type(owner), Tensor)

    def refuse_write(self, owner: Any, detail: str) -> None:
        """Gives up if `owner` is from outside: C writes where no effect says so."""
        if self.is_outside(owner):
            raise GiveUp("write_outside", detail)
        if issubclass(type(owner), Tensor):
            raise GiveUp("tensor_escape", detail)

    def act(self) -> None:
        """The present instruction does something that must not be done twice."""
        self._acted = self.machine.instant()

    # ------------------------------------------------------------------ calls of C
    def c_call(self, function: Any, args: tuple, kwargs: dict) -> Any:
        if self.answer is not NOT_DONE:
            return self.take_answer()
        if self._is_stale:
            self._start_fresh()
        self._performed = self._raised = NOT_DONE
        mark = self._mark()
        try:
            return self.call_by_row(policy(function), function, args, kwargs)
        except GiveUp as raised:
            given = raised.bare()  # outside this block the host call sees no exception of ours
        except Stop:
            raise
        except BaseException as error:
            self.judge(error)
            raise
        return self._host(given, mark, function, args, kwargs)

    def operate(self, function: Any, args: tuple) -> Any:
        if self.answer is not NOT_DONE:
            return self.take_answer()
        if self._is_stale:
            self._start_fresh()
        self._performed = self._raised = NOT_DONE
        mark = self._mark()
        try:
            self.refuse_text("operator", function, args, {})
            if self.numbers:
                return self.operate_with_numbers(function, args, self._operate)
            return self._operate(function, args)
        except GiveUp as raised:
            given = raised.bare()
        except Stop:
            raise
        except BaseException as error:
            self.judge(error)
            raise
        return self._host(given, mark, function, args, {})

    def perform(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Calls `function`, and remembers what came of it."""
        self.act()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            self._raised = error
            raise
        if self.recorder.is_boxed:
            result = self.guards.numbers.unboxed(result)
        self._performed = result
        return result

    def judge(self, error: BaseException) -> None:
        """An exception comes out of a call: unless it is the program's, the fault is ours, and the
        program goes on."""
        if error is not self._raised:
            detail = f"{type(error).__name__}: {error}"
            raise GiveUp("fault", detail, self._performed) from error

    def _operate(self, function: Any, args: tuple, made: Callable | None = None) -> Any:
        if function in _MOVERS:
            self.shallow(args[0], function is iter)
        elif function in _COMPARERS:
            if function in _WRITERS and not issubclass(type(args[0]), Tensor):
                self.refuse_write(args[0], f"an item of {type(args[0]).__name__}")
            self.compare_all(function, args)
            if issubclass(type(args[0]), Tensor) and reads_memory(function, args):
                raise GiveUp("data_dependent_number", "an index of lists that hold tensors")
        else:
            for arg in args:
                if type(arg) is not Tensor:
                    self.look(arg, 0)
        result = self.perform(made or function, args, {})
        self.check(result)
        return result

    # ------------------------------------------------------------------ ends of nodes
    def _mark(self) -> tuple:
        """What was done before the present call of C."""
        return self._acted, self.recorder.mark()

    def _host(self, given: GiveUp, mark: Any, function: Any, args: tuple, kwargs: dict) -> Any:
        """Ends the node with this call, done again on every call; its answer starts the next one.

        `given` says why the call is one. It was made already if it has a result.
        """
        given.__traceback__ = None  # its frames hold the arguments, and it
        if given.reason in _NOT_HOSTED:
            raise given
        acted, ops = mark
        if not self._stands(acted):
            raise given
        everything = (getattr(function, "__self__", None), *args, *kwargs.values())
        if given.result is not NOT_DONE and any(is_fresh_iterator(type(a)) for a in everything):
            raise given  # it has been consumed: a call made again would find it as it is now
        self.failure = None
        self.recorder.rewind(ops)
        try:
            point, slots = self.nodes.host(function, args, kwargs, given)
        except GiveUp as why:  # no recipe: then it cannot be gone on from here
            given.detail = f"{given.detail}; {why.detail}" if given.detail else why.detail
            raise given from why
        self.refuse_if_whole()
        # no variable here has the answer: the frames of an exception may lead to this one
        is_made = given.result is not NOT_DONE
        self.answer = own_float(given.result if is_made else self.call_host(function, args, kwargs))
        seen = self.open(point, (*slots, self.answer), self.answer)
        self.answer = self.answer if seen[-1] is None else seen[-1]
        return self.take_answer()

    def go_on(self, reason: str, detail: str) -> None:
        """Ends the node here: what follows is read from memory as the node has left it."""
        if not self._stands(self._acted):
            raise GiveUp(reason, detail)
        point, slots = self.nodes.goto(GiveUp(reason, detail))
        self.open(point, tuple(slots), NOT_DONE)

    def _start_fresh(self) -> None:
        self._is_stale = False
        self.go_on("own_write_read", "uses a tensor whose memory was exchanged")

    def _stands(self, acted: int) -> bool:
        """Whether the frames stand before an instruction that a later call can execute anew;
        `acted`: when anything was last done, but for what is about to become a host call."""
        has_acted = acted == self.machine.instant()
        can_resume = not (has_acted or self._locks or self.regions.present)
        return can_resume and self.machine.stands_before()

    def open(self, point: Point, values: tuple, result: Any) -> list[Any]:
        """A new node starts at `point`, whose slots hold `values`; what stands for these.

        Raises Stop where the caller knows the point, GiveUp (with the host call's `result`) where
        a value cannot be guarded.
        """
        self.nodes.arrive(point, values)
        carried = *self.carried(values, point), self.guards.moving_lists | moving_lists(point, values)
        for table in (self.known, self.numbers, self.contexts, self.risen, self._entered):
            table.clear()
        self.sources.let_go()
        self.regions.present = None
        self.sources = Sources(self.known, self.numbers)
        self.guards = Guards(self.sources, self.limits.max_guards)
        self.guards.carried, self.guards.carried_axes, self.guards.moving_lists = carried
        self.effects = Effects()
        self.begin_recording()
        self.often = changing_keys(point, values)
        self.machine.forget_views()
        try:
            return self._meet_slots(values, frames_of(self.machine))
        except GiveUp as given:
            raise GiveUp(given.reason, given.detail, result) from given

    def _meet_slots(self, values: tuple, frames: Sequence[Frame]) -> list[Any]:
        """The guards of a point's slots; for each the runtime number that stands for it, or None.
        """
        ambient = self.nodes.start_ambient()
        if aside := why_aside(dict(ambient)):
            raise GiveUp("foreign_state", aside)
        self._claim_ambient(ambient)
        seen = [
            self.guards.meet(self.sources.root("arg", position), value)
            for position, value in enumerate(values)
        ]
        for frame in with_bodies(frames):
            if self._is_own(frame.function):
                self.guards.globals_of(frame.function)
            elif not frame.code.is_own:
                self.entered(frame.function)
            for value in (*frame.locals, *frame.stack):
                for feed in feeds(value) if identity(value) not in self.known else ():
                    if identity(feed) in self.known and type(feed) is not types.GeneratorType:
                        self.guards.whole(feed)  # its elements come without another read
        return seen

    def refuse_if_whole(self) -> None:
        """Under fullgraph the first break ends the run, before anything else is done."""
        if self.limits.is_whole:
            self.machine.fault = Stop()
            raise self.machine.fault

    # ------------------------------------------------------------------ start and end
    def pin_function(self, function: Any) -> None:
        """Code and defaults of a function that runs natively."""
        if type(function) is types.FunctionType:
            self.entered(function)

    def _claim_ambient(self, ambient: tuple) -> None:
        for name, value in ambient:
            self.guards.claim(-1, "ambient", (name, value), name)

    def begin(
        self, target: Any, args: tuple, kwargs: dict, ambient: tuple,
    ) -> tuple[tuple, dict]:
        """The guards of the entry: ambient state, the target, the arguments. Gives the arguments
        as the program shall see them."""
        sources, guards = self.sources, self.guards
        self._claim_ambient(ambient)
        entry = sources.root("entry")
        if type(target) is types.FunctionType:  # its code is claimed where it is entered
            sources.know(target, entry)
        else:
            guards.meet(entry, target)
        met = [
            (value, guards.meet(sources.root("arg", position), value))
            for position, value in enumerate(args)
        ]
        named = [
            (name, value, guards.meet(sources.root("kwarg", name), value))
            for name, value in kwargs.items()
        ]
        return (
            tuple([value if seen is None else seen for value, seen in met]),
            {name: value if seen is None else seen for name, value, seen in named},
        )

    def begin_at(self, point: Point, values: tuple, frames: Sequence[Frame]) -> None:
        """The guards of a node that starts at `point`, where a call has got to without us."""
        self.nodes.begin(point)
        self.begin_recording()
        values = (*values[:-1], own_float(values[-1])) if point.has_answer else values
        held = values[:-1] if point.has_answer and type(values[-1]) is not float else values
        self.guards.carried = {identity(value): value for value in held if type(value) in TOLD}
        self.guards.moving_lists, self.often = moving_lists(point, values), changing_keys(point, values)
        seen = self._meet_slots(values, frames)
        if point.has_answer:
            self.answer = values[-1] if seen[-1] is None else seen[-1]

    def forget(self) -> None:
        """The run is over: nothing of the program is held any longer."""
        self._performed = self._raised = self.answer = NOT_DONE
        for table in (self.known, self.numbers, self.made, self.risen, self._entered, self._behind):
            table.clear()
        self.sources.let_go()
        self.regions.present = None
        self.sources, self.effects = Sources(self.known, self.numbers), Effects()
        self.guards = Guards(self.sources, 0)
        self.recorder.begin(has_tests=False)

    def first_break(self) -> Break:
        """Where a run that must be whole was ended."""
        if self.gave is not None:
            return break_at(*self.gave)
        return self.nodes.list[-1].why

    def unfinished(self) -> tuple[str, str] | None:
        """What the call left undone that a replay would have to do: a reason and its detail."""
        if self.failure is not None:
            return self.failure
        if self._locks:
            return "host_call", "acquire of a lock that is not released"
        return None

    @property
    def frames(self) -> int:
        """How many functions from outside ran interpreted."""
        return len(self._entered)
