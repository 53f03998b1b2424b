"""Instructions that jump, iterate, yield and delegate.

    POP_JUMP_IF_FALSE 12, JUMP_BACKWARD 3, FOR_ITER 20, YIELD_VALUE, SEND 31

A truth test or an iterator step that runs Python becomes a frame; its result then decides the jump.
"""

import types
from collections.abc import Callable
from typing import Any

from preheat.base.identity import identity
from preheat.capture import generators, operations
from preheat.capture.bytecode import VERSION
from preheat.capture.frames import END, RETURN, YIELD, Frame, and_then
from preheat.capture.handlers import HANDLERS, handles, settle
from preheat.capture.tracebacks import raise_as_is


# ----------------------------------------------------------------------------------------- jumps
@handles("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(m, frame, target):
    return target


@handles("JUMP_BACKWARD")
def jump_backward(m, frame, target):
    if m.loop is not None:
        m.loop(frame, True)
    return target


def branch(m, frame: Frame, target: int, wanted: bool) -> Any:
    value = operations.truth(m, frame.stack[-1])
    if type(value) is Frame:
        value.then.insert(0, (jump_target, None, (target, wanted)))
        frame.drop, frame.deliver = 1, jump_to
        return value
    frame.stack.pop()
    return target if value is wanted else None


def jump_target(m, branch: tuple, value: bool) -> int:
    target, wanted = branch
    return target if value is wanted else -1


def jump_to(m, frame: Frame, target: int) -> int | None:
    frame.stack.pop()
    return None if target < 0 else target


@handles("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(m, frame, target):
    value = frame.stack[-1]
    if value is True:
        frame.stack.pop()
        return None
    if value is False or value is None:
        frame.stack.pop()
        return target
    return branch(m, frame, target, False)


@handles("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(m, frame, target):
    value = frame.stack[-1]
    if value is True:
        frame.stack.pop()
        return target
    if value is False or value is None:
        frame.stack.pop()
        return None
    return branch(m, frame, target, True)


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(m, frame, target):
    value = frame.stack[-1]
    if m.test_identity is not None:
        m.test_identity(value, None, value is None)
    frame.stack.pop()
    return target if value is None else None


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m, frame, target):
    value = frame.stack[-1]
    if m.test_identity is not None:
        m.test_identity(value, None, value is None)
    frame.stack.pop()
    return None if value is None else target


def looping(handler: Callable, wanted: bool | None) -> Callable:
    """A conditional jump that goes backward: told as a loop when taken. Where what decides is plain, its truth stands
    for it from then on, so that the instruction may be executed anew."""

    def jump_back(m, frame, target):
        is_plain = wanted is not None and type(frame.stack[-1]) in operations.PLAIN
        if is_plain:
            frame.stack[-1] = operations.truth(m, frame.stack[-1])
            if frame.stack[-1] is wanted and m.loop is not None:
                m.loop(frame, True)
        taken = handler(m, frame, target)
        if taken == target and not is_plain and m.loop is not None:
            m.loop(frame, False)
        return taken

    return jump_back


for condition, wanted in (("IF_FALSE", False), ("IF_TRUE", True), ("IF_NONE", None), ("IF_NOT_NONE", None)):
    HANDLERS[f"POP_JUMP_BACKWARD_{condition}_LOOP"] = looping(HANDLERS[f"POP_JUMP_IF_{condition[3:]}"], wanted)


@handles("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(m, frame, target):
    return jump_or_pop(m, frame, target, False)


@handles("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(m, frame, target):
    return jump_or_pop(m, frame, target, True)


def jump_or_pop(m, frame: Frame, target: int, wanted: bool) -> Any:
    value = and_then(operations.truth(m, frame.stack[-1]), jump_target, None, (target, wanted), m)
    if type(value) is Frame:
        frame.deliver = pop_unless_jump
        return value
    return pop_unless_jump(m, frame, value)


def pop_unless_jump(m, frame: Frame, target: int) -> int | None:
    if target < 0:
        frame.stack.pop()
        return None
    return target


# ------------------------------------------------------------------------------------ iteration
@handles("GET_ITER")
def get_iter(m, frame, _):
    return settle(m, frame, operations.iterate(m, frame.stack[-1], is_alone=True), 1)


@handles("FOR_ITER")
def for_iter(m, frame, target):
    value = operations.advance_once(m, frame.stack[-1])
    if type(value) is Frame:
        value.then.insert(0, (tag_end, None, target))
        frame.deliver = push_or_end
        return value
    if value is END:
        frame.stack.pop()
        return target
    frame.stack.append(value)


class Ended:
    """The index at which a loop goes on after its iterator ended."""

    __slots__ = ("target",)

    def __init__(self, target: int):
        self.target = target


def tag_end(m, target: int, value: Any) -> Any:
    return Ended(target) if value is END else value


def push_or_end(m, frame: Frame, value: Any) -> int | None:
    if type(value) is Ended:
        frame.stack.pop()
        return value.target
    frame.stack.append(value)
    return None


# ----------------------------------------------------------------------------------- generators
@handles("RETURN_GENERATOR")
def return_generator(m, frame, _):
    made = generators.new_generator(m, frame)
    if m.born is not None:
        m.born(made, "generator")
    frame.stack.append(made)
    return RETURN


@handles("YIELD_VALUE")
def yield_value(m, frame, _):
    m.is_yield = True
    return YIELD


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(m, frame, _):
    value = frame.stack[-1]
    if type(value) is types.GeneratorType:
        return None
    return get_iter(m, frame, None)


@handles("SEND")
def send(m, frame, target):
    receiver, value = frame.stack[-2:]
    result = generators.send(m, receiver, value)
    if type(result) is Frame:
        result.then.insert(0, (tag_returned, None, target))
        frame.deliver = push_sent
        return result
    return push_sent(m, frame, tag_returned(m, target, result))


def tag_returned(m, target: int, result: Any) -> Any:
    return (result, target)


def push_sent(m, frame: Frame, outcome: tuple) -> int | None:
    """A yielded value replaces the one sent; a returned one replaces the receiver too (3.11)."""
    result, target = outcome
    if type(result) is generators.Returned:
        if VERSION == (3, 11):
            frame.stack.pop()
        frame.stack[-1] = result.value
        return target
    frame.stack[-1] = result
    return None


@handles("END_SEND")
def end_send(m, frame, _):
    del frame.stack[-2]


@handles("CLEANUP_THROW")
def cleanup_throw(m, frame, _):
    error = frame.stack[-1]
    if isinstance(error, StopIteration):
        frame.stack[-3:] = None, error.value
        return
    m.is_reraise = True
    raise_as_is(error)
