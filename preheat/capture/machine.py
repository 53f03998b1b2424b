"""The machine: runs a Python function for real, bytecode by bytecode, and tells an observer.

    run(model.forward, (x,), {}, Observer())     ->  what model.forward(x) returns or raises

It interprets the function and every Python function it calls; C functions are called. Frames are an
explicit stack (`frames.py`): a Python-to-Python call needs no native recursion, and the stack can
be looked at, at any instruction. Operations (`attributes.py`, `operations.py`, `calls.py`,
`builtins.py`) give either a value or a frame that is still to run; the loop here runs it and hands
its result on.

Requires CPython 3.11, 3.12 or 3.13. Guarantees the value, output, exceptions (type, message,
context, traceback lines) and recursion limit of CPython; what it cannot interpret is called
natively, and the observer is told. Knows nothing of torch. Sources: CPython `Python/bytecodes.c`,
`Python/ceval.c`.
"""

import itertools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from preheat.base.callers import Raised
from preheat.base.errors import InternalError
from preheat.base.identity import identity
from preheat.capture import (
    builtins,
    calls,
    containers,
    copying,
    expressions,
    flow,
    generators,
    introspection,
    statements,
)
from preheat.capture import tracebacks, variables
from preheat.capture.bytecode import Decoder
from preheat.capture.classes import UNSEEN, View
from preheat.capture.frames import NULL, RETURN, Frame, Handled
from preheat.capture.observer import NOT_DONE, GiveUp, Observer
from preheat.capture.handlers import HANDLERS
from preheat.capture.models import MODELS

INSTRUCTION_FILES = (
    variables,
    expressions,
    containers,
    flow,
    statements,
)  # importing them fills HANDLERS
MODEL_FILES = (builtins, copying, introspection)  # and these fill MODELS
DECODE = Decoder(HANDLERS)
# hooks that do what they are told of
PERFORMING = frozenset({"c_call", "operate", "calculate", "test_truth"})
ALWAYS = frozenset({
    "is_native", "is_library", "gave_up", "known", "numbers", "bytecode_limit", "attached",
    "is_opaque", "is_opaque_member", "is_indexed_by_boxes", "is_key_by_identity",
})
length_hint = operator.length_hint
DEEP = 16  # so many native loops inside each other: time to give native code more stack
TELLING = tuple(
    name for name in vars(Observer) if name[0] != "_" and name not in PERFORMING | ALWAYS
)


def run(
    function: Callable, args: tuple, kwargs: dict, observer: Observer, rest: tuple | None = None,
) -> Any:
    """`function(*args, *rest, **kwargs)`, interpreted under `observer`. Nobody looks how long `rest` is."""
    machine = Machine(observer)
    try:
        if rest is not None:
            return machine.finish(calls.spread(machine, function, args, rest, kwargs))
        return machine.call(function, args, kwargs)
    finally:
        machine.end()


def resume(
    frames: list[Frame], observer: Observer, raised: list[BaseException] | None = None,
    revived: list[types.GeneratorType] | None = None,
) -> Any:
    """What the call of `frames[0]` gives, gone on with from where the frames stand, innermost last.

    The innermost instruction is executed anew; that of `raised` arises in it instead. `revived`: the
    generators made again, which run in this machine. The lists are emptied: what they hold
    dies when the program lets go of them.
    """
    machine = Machine(observer)
    while revived:
        generators.seat_of(revived.pop()).machine = machine
    base = frames[0]
    bodies = [frame for frame in frames if frame.within is not None]
    bodies[-1].within.error = raised.pop() if raised else None
    frames.clear(), bodies.clear()
    within, base.within = base.within, None
    machine.handled.error, innermost, error = within.handled, within.innermost, [within.error]
    within = None
    try:
        result = machine.execute(base, error.pop(), innermost)
        base = innermost = None  # what dies with the outermost frame is still part of the run
        return result
    finally:
        machine.end()


def run_code(code: types.CodeType, space: dict, observer: Observer) -> None:
    """`exec(code, space)`, interpreted under `observer`: `space` is both globals and locals."""
    space.setdefault("__builtins__", sys.modules["builtins"])
    machine = Machine(observer)
    try:
        decoded = machine.decode(code)
        frame = Frame(decoded, types.FunctionType(code, space), [NULL] * decoded.size)
        frame.names = space
        machine.finish(frame)
    finally:
        machine.end()


class Machine:
    """One run: the observer's hooks, the innermost frame, and the state that frames share.

    The hooks are attributes of the same name, None where the observer does not override them or was
    dropped, so that a hook that has nothing to do costs one test.

    frame      the innermost frame; `frame.back` leads outward, across native calls in between
    known      the observer's table of outside objects; `numbers`: that of numbers told apart
    handled    the exceptions being handled: a level for the run, one for each generator that runs
    has_context  an error under way that has got its context already
    is_native  True: Python functions are called natively (the observer gave up, or the run is over)
    delivered  the instant at which a callee's result last reached a waiting instruction
    direct     the generator that the present instruction is about to advance, itself
    nesting    native loops inside each other; directs: those of generators advanced so
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.frame: Frame | None = None
        self.known, self.numbers = observer.known, observer.numbers
        self.handled = self.handled_outside = Handled(None, Handled(sys.exc_info()[1], None))
        self.is_native = False
        self.is_reraise = self.is_yield = False
        self.has_context: BaseException | None = None
        self.value: Any = None
        self.fault: BaseException | None = None
        self.depth = native_depth()
        self.limit = self.limit_outside = sys.getrecursionlimit()
        self.nesting = self.directs = 0
        self.direct: types.GeneratorType | None = None
        self.delivered = -1
        self.ticks = iter(range(observer.bytecode_limit))
        self.views: dict[int, View] = {}
        self.decode = DECODE
        self.models = MODELS
        marks = type(observer).is_native is not Observer.is_native
        self.marks_native = observer.is_native if marks else None
        for name in TELLING:
            self.set_hook(name, self.telling)
        for name in PERFORMING:
            self.set_hook(name, self.performing)
        self.is_watching = any(getattr(self, name) is not None for name in (*TELLING, *PERFORMING))
        observer.attached(self)

    # ------------------------------------------------------------------------------------- hooks
    def set_hook(self, name: str, guarded: Callable) -> None:
        is_overridden = getattr(type(self.observer), name) is not getattr(Observer, name)
        setattr(self, name, guarded(getattr(self.observer, name)) if is_overridden else None)

    def telling(self, hook: Callable) -> Callable:
        """`hook`, with a GiveUp carried out on the spot: the instruction goes on unwatched."""

        def tell(*args: Any) -> Any:
            try:
                return hook(*args)
            except GiveUp as given:
                given.bare()
                self.give_up(given.reason, given.detail)
            except Exception as error:
                self.fail(error)

        return tell

    def performing(self, hook: Callable) -> Callable:
        """`hook`, that performs; after a GiveUp the machine performs what was not yet done."""

        def perform(function: Any, args: Any = NOT_DONE, kwargs: Any = NOT_DONE) -> Any:
            try:
                if args is NOT_DONE:
                    return hook(function)
                return hook(function, args) if kwargs is NOT_DONE else hook(function, args, kwargs)
            except GiveUp as given:
                given.bare()
                self.give_up(given.reason, given.detail)
                result = given.result
            if type(result) is Raised:
                tracebacks.raise_as_is(result.error)
            if result is not NOT_DONE:
                return result
            if args is NOT_DONE:
                return bool(function)
            return function(*args) if kwargs is NOT_DONE else function(*args, **kwargs)

        return perform

    def give_up(self, reason: str, detail: str) -> None:
        """Drops the observer: new Python functions run natively, open frames are interpreted to
        their end.
        """
        if self.is_native:
            return
        self.close()
        frame = self.blamed_frame()
        file, line = (frame.source.co_filename, frame.line()) if frame is not None else ("", 0)
        self.observer.gave_up(reason, detail, file, line)

    def close(self) -> None:
        """No hook is called any more and no function entered; generators that live on run
        unwatched.
        """
        self.is_native, self.is_watching = True, False
        self.ticks, self.numbers = itertools.repeat(None), {}
        for name in (*TELLING, *PERFORMING):
            setattr(self, name, None)
        self.views.clear()

    def instant(self) -> int:
        """A number of the present instruction's execution: no other one has it in this run."""
        return operator.length_hint(self.ticks)

    def stands_before(self) -> bool:
        """Whether the innermost instruction has not begun to act through a callee, and nothing but
        its frames is needed to execute it anew later: no native frame in between but those of
        generators that an instruction of ours advances.
        """
        return (
            self.nesting == 1 + self.directs
            and self.delivered != self.instant()
        )

    def handled_errors(self) -> list[BaseException | None]:
        """The exception that the program handles, and each generator that runs, outermost first."""
        level, errors = self.handled, [self.handled_outside.error]
        while level is not self.handled_outside:
            errors.insert(1, level.error)
            level = level.below
        return errors

    def forget_views(self) -> None:
        """Reads of classes are told anew from now on."""
        self.views.clear()

    def end(self) -> None:
        """The run is over; generators that live on are no part of how it ended."""
        self.close()
        self.fault = self.has_context = None
        if self.limit != self.limit_outside:
            sys.setrecursionlimit(self.limit)

    def fail(self, error: BaseException) -> None:
        """A hook has a fault of its own: the run ends, no handler of the program sees it."""
        self.fault = InternalError(f"the observer failed: {type(error).__name__}: {error}")
        self.fault.__cause__ = error
        raise self.fault

    # ---------------------------------------------------------------------- what operations need
    def view(self, cls: type) -> View:
        """What is known of `cls` in its present state."""
        view = self.views.get(identity(cls))
        if view is None or view.tag.value != view.version:
            view = self.views[identity(cls)] = View(cls)
            if self.read_class is not None:
                self.read_class(cls, cls, "__getattribute__", view.raws["__getattribute__"])
        return view

    def lookup(self, owner: Any, cls: type, name: str) -> Any:
        """The raw attribute `name` along the MRO of `cls`, or ABSENT; told once per state of the
        class.
        """
        view = self.views.get(identity(cls))
        if view is None or view.tag.value != view.version:
            view = self.view(cls)
        raw = view.raws.get(name, UNSEEN)
        if raw is UNSEEN:
            raw = view.lookup(name)
            if self.read_class is not None:
                self.read_class(owner, cls, name, raw)
        return raw

    def call(self, function: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """The result of a call, interpreted, for code that needs it at once: the native stack
        grows.
        """
        return self.finish(calls.invoke(self, function, args, kwargs))

    def finish(self, value: Any) -> Any:
        """`value`, or the result of the frame `value`, run here and now."""
        while type(value) is Frame:
            value = self.execute(value)
        return value

    def user_frame(self, level: int = 0) -> Frame | None:
        """The innermost frame of the program, `level` frames further out; our own polyfills do not
        count.
        """
        frame = self.frame
        while frame is not None and (frame.code.is_own or level):
            level -= not frame.code.is_own
            frame = frame.back
        return frame

    def blamed_frame(self) -> Frame | None:
        """The innermost frame that is no library's, by the observer's judgement; else the
        innermost.
        """
        innermost = frame = self.user_frame()
        while frame is not None and (
            frame.code.is_own or self.observer.is_library(frame.source.co_filename)
        ):
            frame = frame.back
        return innermost if frame is None else frame

    # ---------------------------------------------------------------------------------- the loop
    def execute(
        self, base: Frame, error: BaseException | None = None, innermost: Frame | None = None
    ) -> Any:
        """Runs `base`, and all it calls, until it returns or yields; `error` is raised first.

        `innermost`: the frame to go on with, where `base` waits for others already.
        Handlers return None (go on), an int (go to), a Frame (enter it), RETURN or YIELD.
        """
        outside, depth = self.frame, self.depth
        self.nesting += 1
        if self.nesting == DEEP:
            sys.setrecursionlimit(self.native_limit())
        base.is_base = True
        base.back = outside
        frame = self.frame = base if innermost is None else innermost
        self.depth += 1
        while innermost is not None and innermost is not base:
            self.depth, innermost = self.depth + 1, innermost.back
        pc = frame.pc
        try:
            if self.depth > self.limit:
                self.check_depth()
            while True:
                if error is not None:
                    failed, error = error, None
                    out = self.unwind(self.frame, failed)
                    failed = None
                    if out is RETURN:
                        return self.returned()
                    frame, pc = self.frame, out
                try:
                    instructions = frame.code.instructions
                    for _ in self.ticks:
                        handler, argument = instructions[pc]
                        frame.pc = pc
                        out = handler(self, frame, argument)
                        if out is None:
                            pc += 1
                            continue
                        kind = type(out)
                        if kind is int:
                            pc = out
                        elif kind is Frame:
                            self.depth += 1
                            if self.depth > self.limit:
                                self.check_depth()
                            out.back = frame
                            self.frame = frame = out
                            instructions = out.code.instructions
                            pc = out.pc
                        elif out is RETURN:
                            if frame.then is None and not frame.is_base:
                                value = frame.stack.pop()
                                self.delivered = length_hint(self.ticks)
                                self.depth -= 1
                                self.frame = frame = frame.back
                                out = frame.deliver(self, frame, value)
                                value = None
                                pc = frame.pc + 1 if out is None else out
                            else:
                                out = self.leave(frame, frame.stack.pop(), None)
                                if out is RETURN:
                                    return self.returned()
                                frame, pc = self.frame, out
                            instructions = frame.code.instructions
                        else:
                            return frame.stack.pop()
                    else:
                        self.give_up("bytecodes", str(self.observer.bytecode_limit))
                except BaseException as raised:
                    error = raised
        finally:
            self.frame, self.depth, base.back = outside, depth, None
            self.nesting -= 1
            if self.nesting == DEEP - 1:
                sys.setrecursionlimit(self.limit)

    def unwind(self, frame: Frame, error: BaseException) -> Any:
        """`error` was raised by the instruction of `frame`: the index of its handler, or what
        `leave` gives.
        """
        if self.fault is not None:
            raise self.fault
        if self.raised is not None:
            self.raised(error)
        tracebacks.clean(error)
        if self.is_reraise:
            self.is_reraise = False
        else:
            tracebacks.add(error, frame)
            if error is not self.has_context:
                self.set_context(error)
        self.has_context = None
        target = self.catch(frame, error)
        return self.leave(frame, None, error) if target is None else target

    def catch(self, frame: Frame, error: BaseException) -> int | None:
        """Prepares `frame` for the handler of its present instruction: its index, or None."""
        handler = frame.code.handlers.get(frame.pc)
        if handler is None:
            return None
        target, height, pushes_lasti = handler
        del frame.stack[height:]
        if pushes_lasti:
            frame.stack.append(frame.pc)
        frame.stack.append(error)
        if self.born is not None:
            self.born(error, "exception")
        return target

    def set_context(self, error: BaseException) -> None:
        """What CPython does where an error is raised: the exception being handled becomes its
        context.
        """
        handled = self.handled.current()
        if handled is not None and error.__context__ is None and error is not handled:
            tracebacks.set_context(error, handled)

    def raise_fresh(self, error: BaseException) -> None:
        """What a `raise` statement does: the exception being handled becomes the context of
        `error`.
        """
        handled = self.handled.current()
        if handled is not None:
            tracebacks.set_context(error, handled)
        self.has_context = error
        tracebacks.raise_as_is(error)

    def fresh(self, error: BaseException, before: BaseException | None = None) -> BaseException:
        """`error`, raised by what was to be done with a result, or with the error `before`."""
        tracebacks.clean(error)
        if error is not before and error is not self.has_context:
            self.set_context(error)
        return error

    def leave(self, frame: Frame, value: Any, error: BaseException | None) -> Any:
        """`frame` ended with `value` or `error`: the caller's next index, or RETURN when the base
        ended.
        """
        self.delivered = length_hint(self.ticks)
        while True:
            if frame.then:
                value, error = self.settle(frame, value, error)
            if error is None and type(value) is Frame:
                value.back, value.is_base = frame.back, frame.is_base
                self.frame = value
                return value.pc
            if frame.is_base:
                if error is not None:
                    if (
                        type(error) is not GeneratorExit
                    ):  # that one is swallowed by C, with no one to clear this
                        self.has_context = error
                    tracebacks.raise_as_is(error)
                self.value = value
                return RETURN
            self.depth -= 1
            self.frame = frame = frame.back
            if error is None:
                try:
                    out = frame.deliver(self, frame, value)
                    return frame.pc + 1 if out is None else out
                except BaseException as raised:
                    error = self.fresh(raised)
            tracebacks.add(error, frame)
            target = self.catch(frame, error)
            if target is not None:
                return target
            value = None

    def settle(self, frame: Frame, value: Any, error: BaseException | None) -> tuple:
        """Runs what `frame.then` holds on the frame's result; a frame that comes out takes over
        the rest.
        """
        rest = frame.then
        while rest:
            on_value, on_error, data = rest.pop()
            step = on_value if error is None else on_error
            if step is None:
                continue
            try:
                value, error = step(self, data, value if error is None else error), None
            except BaseException as raised:
                error = self.fresh(raised, error)
            if error is None and type(value) is Frame:
                value.then = rest + (value.then or [])
                return value, None
        return value, error

    def returned(self) -> Any:
        value, self.value = self.value, None
        return value

    def take_yield(self) -> bool:
        """True when the frame that just stopped is suspended, not ended."""
        was_yield, self.is_yield = self.is_yield, False
        return was_yield

    def user_depth(self) -> int:
        """How many frames of the program the machine holds."""
        depth, frame = 0, self.frame
        while frame is not None:
            depth += not frame.code.is_own
            frame = frame.back
        return depth

    def native_frame(self, level: int) -> types.FrameType | None:
        """The native frame `level` further out than the one that called `run`; None past the
        outermost.
        """
        frame = sys._getframe()
        while frame is not None and frame.f_code is not run.__code__:
            frame = frame.f_back
        while frame is not None and level >= 0:
            frame, level = frame.f_back, level - 1
        return frame

    def check_depth(self) -> None:
        if self.depth > self.limit:
            self.depth -= 1
            raise RecursionError("maximum recursion depth exceeded")

    def set_limit(self, limit: int) -> None:
        """sys.setrecursionlimit: for the program's frames; native ones get room on top."""
        self.limit = limit
        sys.setrecursionlimit(
            self.native_limit() if self.nesting >= DEEP else max(limit, native_depth() + 200)
        )

    def native_limit(self) -> int:
        """Room for the native frames of a program that nests them as deep as it may: six each."""
        return 6 * self.limit + 2000


def native_depth() -> int:
    """How many native frames stand below the machine's own."""
    depth, frame = 0, sys._getframe(2)
    while frame is not None:
        depth += 1
        frame = frame.f_back
    return depth
