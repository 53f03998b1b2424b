"""Liveness: which local variables the rest of a function may still read.

    y = f(x)          live before it: x          a snapshot there need not carry y's old value
    z = y + 1                         y          nor here x

Backward data flow over the decoded instructions, to a fixed point, as bit masks. Over-estimates:
every instruction may fall through, and may raise into its handler; cells and free variables, and
what a function that looks at its own frame may see, live throughout.
"""

from typing import Any

from preheat.capture.bytecode import JUMPS, Code
from preheat.capture.handlers import HANDLERS


def live_before(code: Code, index: int) -> int:
    """A bit for each local that is live before instruction `index`."""
    if code.live is None:
        code.live = _analysed(code)
    return code.live[index]


def _analysed(code: Code) -> list[int]:
    everything = (1 << code.size) - 1
    size = len(code.instructions)
    if code.looks_at_frames:
        return [everything] * (size + 1)
    reads, writes, always = _accesses(code)
    live = [0] * (size + 1)
    jumps = _jump_handlers()
    is_changed = True
    while is_changed:
        is_changed = False
        for index in reversed(range(size)):
            handler, argument = code.instructions[index]
            after = live[index + 1]
            if handler in jumps:
                after |= live[argument]
            before = after & ~writes[index] | reads[index]
            if index in code.handlers:
                before |= live[code.handlers[index][0]]
            if before != live[index]:
                live[index], is_changed = before, True
    return [mask | always for mask in live]


def _accesses(code: Code) -> tuple[list[int], list[int], int]:
    """For each instruction the locals it reads and those it only writes; and those that are cells."""
    reads, writes, always = [0] * len(code.instructions), [0] * len(code.instructions), 0
    table = _access_handlers()
    for index, (handler, argument) in enumerate(code.instructions):
        for kind, local in table.get(handler, _none)(argument):
            if kind == "read":
                reads[index] |= 1 << local & ~writes[index]
            elif kind == "write":
                writes[index] |= 1 << local
            else:
                always |= 1 << local
    return reads, writes, always


def written_between(code: Code, first: int, last: int) -> list[int]:
    """The locals that instructions `first` to `last` store to, cells among them."""
    table, found, to_cell = _access_handlers(), {}, HANDLERS["STORE_DEREF"]
    for handler, argument in code.instructions[first:last + 1]:
        found |= {local: None for kind, local in table.get(handler, _none)(argument)
                  if kind == "write" or handler is to_cell}
    return list(found)


def _none(argument: Any) -> tuple:
    return ()


# What an instruction does to locals, in order, from its decoded argument.
_ACCESSES = {
    "LOAD_FAST": lambda i: (("read", i),),
    "LOAD_FAST_CHECK": lambda i: (("read", i),),
    "LOAD_FAST_AND_CLEAR": lambda i: (("read", i),),
    "DELETE_FAST": lambda i: (("read", i),),
    "STORE_FAST": lambda i: (("write", i),),
    "LOAD_FAST_LOAD_FAST": lambda p: (("read", p[0]), ("read", p[1])),
    "STORE_FAST_LOAD_FAST": lambda p: (("write", p[0]), ("read", p[1])),
    "STORE_FAST_STORE_FAST": lambda p: (("write", p[0]), ("write", p[1])),
    **{name: lambda i: (("cell", i),) for name in (
        "MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF",
        "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    )},
}


def _access_handlers() -> dict:
    return {HANDLERS[name]: access for name, access in _ACCESSES.items() if name in HANDLERS}


def _jump_handlers() -> frozenset:
    names = (*JUMPS, *(f"{name}_LOOP" for name in JUMPS))
    return frozenset(HANDLERS[name] for name in names if name in HANDLERS)
