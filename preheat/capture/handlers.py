"""The table of instruction handlers, and the ways in which an instruction takes its result.

    @handles("BINARY_OP")
    def binary_op(m, frame, function): ...     peek at two operands, operate, pop, push the result

A handler gets the machine, the frame and the decoded argument. It returns None to go on, the index
to jump to, a Frame to enter (after saying in `frame.deliver` and `frame.drop` how the result is
taken), or RETURN or YIELD. It touches the stack only after everything that can raise or be told is
done. The handlers of CPython 3.11, 3.12 and 3.13 are in `variables.py`, `expressions.py`,
`containers.py`, `flow.py` and `statements.py`; an opcode without one makes its function run
natively. Source: CPython `Python/ceval.c` (3.11), `Python/bytecodes.c` (3.12, 3.13),
`Doc/library/dis.rst`.
"""

from collections.abc import Callable
from typing import Any

from preheat.capture.frames import Frame

HANDLERS: dict[str, Callable] = {}


def handles(*names: str) -> Callable:
    """Registers the function below as the handler of opcodes `names`."""

    def register(handler: Callable) -> Callable:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def push(m, frame: Frame, value: Any) -> None:
    """The result replaces the instruction's operands."""
    if frame.drop:
        del frame.stack[-frame.drop :]
    frame.stack.append(value)


def discard(m, frame: Frame, value: Any) -> None:
    """The operands go, the result is not wanted."""
    del frame.stack[-frame.drop :]


def push_negated(m, frame: Frame, value: bool) -> None:
    push(m, frame, not value)


def settle(m, frame: Frame, value: Any, drop: int, deliver: Callable = push) -> Any:
    """Delivers `value`, or has the loop run the frame that gives it."""
    frame.drop = drop
    if type(value) is Frame:
        frame.deliver = deliver
        return value
    return deliver(m, frame, value)
