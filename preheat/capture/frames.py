"""Frames: the state of a function that the machine runs, as data that can be resumed.

    def f(x):                 Frame(f)   locals [x, NULL]   stack [NULL, g, x]   pc 3: CALL 1
        y = g(x)       ->     Frame(g)   locals [x]         stack []             pc 0
        return y              Frame(g).back is Frame(f)

Instructions peek at their operands, execute, then pop: while a frame waits for a callee, its
operands still stand on its stack, `pc` names the waiting instruction, `drop` says how many operands
the result replaces and `deliver` how. `then` holds what is still to be done with the frame's own
result before its caller sees it: the rest of an operation that called Python in the middle, such as
`__radd__` after an `__add__` that gave NotImplemented.
"""

import types
from collections.abc import Callable
from typing import Any

from preheat.capture.bytecode import Code


class Null:
    """An empty local, or the place on the stack that CPython fills with NULL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()


class End:
    """What an exhausted iterator gives inside the machine, and what ends a frame's activation."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


END = End("END")  # from the operation `next`: the iterator is exhausted
RETURN = End("RETURN")  # from a handler: the frame ends, its value is on top of its stack
YIELD = End("YIELD")  # from a handler: the frame is suspended, its value is on top of its stack


class Frame:
    """One activation of a Python function.

    code, source    decoded code and the code object
    function        the function, or None
    locals          fast locals, cells and free variables; NULL where unbound
    names           namespace of a class body, else None
    pc              index of the instruction that runs or waits
    back            the frame that waits for this one
    is_base         its result goes to native code
    deliver, drop   how the waiting instruction takes a callee's result
    then            [(on value, on error, data), ...], next one last
    within          of a base that is made again in the middle: where it stands
    """

    __slots__ = (
        "code",
        "source",
        "function",
        "locals",
        "stack",
        "pc",
        "globals",
        "builtins",
        "names",
        "back",
        "is_base",
        "deliver",
        "drop",
        "then",
        "within",
    )

    def __init__(self, code: Code, function: types.FunctionType, values: list):
        self.code = code
        self.source = function.__code__
        self.function = function
        self.locals = values
        self.stack: list[Any] = []
        self.pc = 0
        self.globals = function.__globals__
        self.builtins = function.__builtins__
        self.names = None
        self.back: Frame | None = None
        self.is_base = False
        self.deliver: Callable | None = None
        self.drop = 0
        self.then: list[tuple] | None = None
        self.within: Within | None = None

    def __repr__(self) -> str:
        return f"<frame {self.source.co_qualname} {self.source.co_filename}:{self.line()}>"

    def line(self) -> int:
        return self.code.line(self.source, self.pc)

    def column(self) -> int:
        """Where in its line the present instruction begins, in bytes; -1 if that is not known."""
        return self.code.column(self.source, self.pc)

    def variables(self) -> dict[str, Any]:
        """What `locals()` gives: the names that are bound, cells replaced by their contents."""
        found = {}
        for name, value in zip(self.code.names, self.locals):
            if type(value) is types.CellType and name in self.cell_names():
                try:
                    value = value.cell_contents
                except ValueError:
                    continue
            if value is not NULL:
                found[name] = value
        return found

    def cell_names(self) -> tuple[str, ...]:
        return self.source.co_cellvars + self.source.co_freevars


def has_content(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


class Within:
    """Where the outermost frame, or the body of a generator, stood when its frames were left: the
    frame to go on with (the base itself, or one that it waits for), the exception that is being
    handled there, and one to be raised.
    """

    __slots__ = ("innermost", "handled", "error")

    def __init__(self, innermost: Frame, handled: BaseException | None):
        self.innermost, self.handled = innermost, handled
        self.error: BaseException | None = None


class Handled:
    """The exception being handled, of a thread or a generator; `below` is that of who resumed it.

    `sys.exc_info()` is the innermost that is not None, as in CPython's `_PyErr_StackItem`.
    """

    __slots__ = ("error", "below")

    def __init__(self, error: BaseException | None, below: "Handled | None"):
        self.error, self.below = error, below

    def current(self) -> BaseException | None:
        level = self
        while level is not None and level.error is None:
            level = level.below
        return None if level is None else level.error


def attempt(m: Any, on_error: Callable, data: Any, operation: Callable, *args: Any) -> Any:
    """`operation(m, *args)`; where it raises, at once or in its frame, what on_error(m, data,
    error) gives.
    """
    try:
        value = operation(m, *args)
    except BaseException as error:
        return on_error(m, data, error)
    return and_then(value, None, on_error, data)


def and_then(
    value: Any,
    on_value: Callable | None,
    on_error: Callable | None = None,
    data: Any = None,
    machine: Any = None,
) -> Any:
    """Continues an operation: at once when `value` is there, else when its frame has the result.

    on_value(machine, data, value) and on_error(machine, data, error) give a value or again a frame.
    """
    if type(value) is not Frame:
        return value if on_value is None else on_value(machine, data, value)
    if value.then is None:
        value.then = [(on_value, on_error, data)]
    else:
        value.then.insert(0, (on_value, on_error, data))
    return value
