"""Decoding: a code object becomes a list of (handler, argument) pairs that the machine runs.

    LOAD_GLOBAL 1 (NULL + f)          (load_global, ("f", True))
    LOAD_FAST 0 (x)             ->    (load_fast, 0)
    KW_NAMES 2; PRECALL 1; CALL 1     (call_keywords, (1, ("key",)))
    POP_JUMP_FORWARD_IF_FALSE 12      (pop_jump_if_false, 17)       index, not offset

Requires CPython 3.11, 3.12 or 3.13. Guarantees that every instruction has a handler, or says in
`Code.why_native` which one has not: such a function is never entered. Jump targets are indices into
`Code.instructions`. CACHE, EXTENDED_ARG, RESUME, NOP and PRECALL vanish; `Code.offsets` leads back
to the bytecode for lines and tracebacks. Sources: CPython `Objects/exception_handling_notes.txt`,
`Lib/dis.py`.
"""

import abc
import inspect
import itertools
import opcode
import operator
import os
import pathlib
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from preheat.base.identity import identity

VERSION = sys.version_info[:2]
OWN_FOLDER = (
    str(pathlib.Path(__file__).parent) + os.sep
)  # frames of our own files never show in tracebacks
# the files of ours that the machine interprets
POLYFILLS = frozenset(
    OWN_FOLDER + name for name in ("polyfills.py", "updates.py", "modes.py", "checkpointed.py"))
ABC_CHECKS = tuple(
    vars(abc.ABCMeta)[name].__code__ for name in ("__instancecheck__", "__subclasscheck__")
)  # C calls back from them and typing.Protocol looks for their native frame
NULL_FIRST = VERSION < (3, 13)  # where PUSH_NULL stands: below the callable, or above it
SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "RESUME", "NOP", "PRECALL", "KW_NAMES"})
FRAME_READERS = frozenset(
    ("_getframe", "_getframemodulename", "currentframe", "stack", "warn", "exc_info")
)
NATIVE_FLAGS = {
    inspect.CO_COROUTINE: "coroutine",
    inspect.CO_ITERABLE_COROUTINE: "coroutine",
    inspect.CO_ASYNC_GENERATOR: "async generator",
}
VARARGS, VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS

BY_NAME = frozenset(
    "STORE_NAME DELETE_NAME LOAD_NAME STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR "
    "IMPORT_NAME IMPORT_FROM LOAD_METHOD LOAD_FROM_DICT_OR_GLOBALS".split()
)
BY_CONSTANT = frozenset({"LOAD_CONST", "RETURN_CONST", "KW_NAMES"})
JUMPS = frozenset(opcode.opname[number] for number in opcode.hasjrel)
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
COMPARISON_SHIFT = {(3, 11): 0, (3, 12): 4, (3, 13): 5}.get(VERSION, 5)
OPERATORS = (
    operator.add,
    operator.and_,
    operator.floordiv,
    operator.lshift,
    operator.matmul,
    operator.mul,
    operator.mod,
    operator.or_,
    operator.pow,
    operator.rshift,
    operator.sub,
    operator.truediv,
    operator.xor,
    operator.iadd,
    operator.iand,
    operator.ifloordiv,
    operator.ilshift,
    operator.imatmul,
    operator.imul,
    operator.imod,
    operator.ior,
    operator.ipow,
    operator.irshift,
    operator.isub,
    operator.itruediv,
    operator.ixor,
)  # in the order of CPython's NB_ constants


class Code:
    """A decoded code object. It does not hold the code itself, so that the cache can be weak.

    instructions   (handler, argument) pairs
    handlers       {index: (target index, stack depth, push lasti)}: the exception table
    offsets        byte offset of each instruction in `co_code`
    delegations    indices of the YIELD_VALUE of each `yield from`
    names          names of the locals, cells and free variables, by index
    is_simple      only positional parameters
    why_native     "" or why the machine must not enter it
    looks_at_frames   it may ask for its caller's frame: run natively it would find ours
    live           locals that are live before each instruction (`liveness.py`), when first asked
    """

    __slots__ = (
        "instructions",
        "handlers",
        "offsets",
        "delegations",
        "names",
        "size",
        "argument_count",
        "is_simple",
        "why_native",
        "looks_at_frames",
        "is_own",
        "lines",
        "live",
    )

    def __init__(self, code: CodeType):
        self.names = variable_names(code)
        self.size = len(self.names)
        self.argument_count = code.co_argcount
        self.is_simple = not code.co_kwonlyargcount and not code.co_flags & (VARARGS | VARKEYWORDS)
        self.looks_at_frames = not FRAME_READERS.isdisjoint(code.co_names)
        self.is_own = code.co_filename.startswith(OWN_FOLDER)
        self.instructions: list[tuple[Callable, Any]] = []
        self.handlers: dict[int, tuple[int, int, bool]] = {}
        self.offsets: list[int] = []
        self.delegations: set[int] = set()
        self.why_native = ""
        self.lines: tuple[int, ...] | None = None
        self.live: list[int] | None = None

    def line(self, code: CodeType, index: int) -> int:
        """Line in the user's file of instruction `index`; `code` is what this was decoded from."""
        if self.lines is None:
            first = code.co_firstlineno
            by_unit = [position[0] or first for position in code.co_positions()]
            self.lines = tuple(by_unit[offset // 2] for offset in self.offsets)
        return self.lines[index] if 0 <= index < len(self.lines) else code.co_firstlineno

    def column(self, code: CodeType, index: int) -> int:
        """Where in its line instruction `index` begins, in bytes; -1 if that is not known."""
        if not 0 <= index < len(self.offsets):
            return -1
        *_, column, _ = next(itertools.islice(code.co_positions(), self.offsets[index] // 2, None))
        return -1 if column is None else column


class Decoder:
    """Decodes each code object once, with a table of handlers by opcode name.

    The cache is keyed by identity and weak: code objects compare by value without their file name,
    and hashing one walks its constants.
    """

    def __init__(self, handlers: dict[str, Callable]):
        self.handlers = handlers
        self.cache: dict[int, tuple[weakref.ref, Code]] = {}

    def __call__(self, code: CodeType) -> Code:
        entry = self.cache.get(identity(code))
        if entry is not None:
            return entry[1]
        decoded = decode(code, self.handlers)
        key, cache = identity(code), self.cache
        self.cache[key] = (weakref.ref(code, lambda _: cache.pop(key, None)), decoded)
        return decoded


def decode(code: CodeType, handlers: dict[str, Callable]) -> Code:
    """`code` with each instruction bound to its handler; see the module docstring."""
    result = Code(code)
    if result.is_own and code.co_filename not in POLYFILLS:
        result.why_native = "own"
        return result
    if code in ABC_CHECKS:
        result.why_native = "abc"
        return result
    for flag, why in NATIVE_FLAGS.items():
        if code.co_flags & flag:
            result.why_native = why
            return result
    raw = list(units(code.co_code))
    index_at = index_of_offsets(raw, len(code.co_code))
    keywords: tuple[str, ...] = ()
    previous = ""
    for offset, number, argument, after in raw:
        name = opcode.opname[number]
        if name == "KW_NAMES":
            keywords = code.co_consts[argument]
        if name in SKIPPED:
            continue
        if name == "CALL" and keywords:
            name, argument, keywords = "CALL_KEYWORDS", (argument, keywords), ()
        elif name in JUMPS:
            target = after + 2 * (-argument if "BACKWARD" in name else argument)
            argument = index_at[target]
            if (
                name == "FOR_ITER"
            ):  # 3.12 and 3.13 jump behind the END_FOR (and POP_TOP) that follow
                argument += {(3, 11): 0, (3, 12): 1}.get(VERSION, 2)
            if "BACKWARD" in name and name.startswith("POP_JUMP"):
                name += "_LOOP"
        else:
            name, argument = translate(code, result.names, name, argument)
        handler = handlers.get(name)
        if handler is None:
            result.why_native = f"opcode {name}"
            return result
        if name == "YIELD_VALUE" and previous == "SEND":
            result.delegations.add(len(result.instructions))
        previous = name
        result.offsets.append(offset)
        result.instructions.append((handler, argument))
    for start, end, target, depth, lasti in exception_table(code.co_exceptiontable):
        for index in range(index_at[start], index_at[end]):
            result.handlers[index] = (index_at[target], depth, lasti)
    return result


def translate(code: CodeType, names: tuple[str, ...], name: str, argument: int) -> tuple[str, Any]:
    """The handler's name and argument for an instruction: names, constants and functions, not
    indices.
    """
    if name in BY_NAME:
        return name, code.co_names[argument]
    if name in BY_CONSTANT:
        return name, code.co_consts[argument]
    if name == "LOAD_GLOBAL":
        return ("LOAD_GLOBAL_NULL" if argument & 1 else name), code.co_names[argument >> 1]
    if name == "LOAD_ATTR":
        if VERSION == (3, 11):
            return name, code.co_names[argument]
        return ("LOAD_METHOD" if argument & 1 else name), code.co_names[argument >> 1]
    if name == "LOAD_SUPER_ATTR":
        has_arguments = bool(argument & 2)
        return ("LOAD_SUPER_METHOD" if argument & 1 else name), (
            code.co_names[argument >> 2],
            has_arguments,
        )
    if name in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"):
        return f"{name} {argument}", None
    if name == "BINARY_OP":
        return name, OPERATORS[argument]
    if name == "COMPARE_OP":
        compare = COMPARISONS[argument >> COMPARISON_SHIFT]
        return ("COMPARE_BOOL" if VERSION >= (3, 13) and argument & 16 else name), compare
    if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
        return name, (argument >> 4, argument & 15)
    if name == "YIELD_VALUE" and VERSION >= (3, 12):
        return name, None
    return name, argument


def variable_names(code: CodeType) -> tuple[str, ...]:
    """Names of the fast locals in their order: locals, then cells that are no locals, then free
    variables.
    """
    names = code.co_varnames
    return names + tuple(cell for cell in code.co_cellvars if cell not in names) + code.co_freevars


def units(code: bytes):
    """Yields (offset, opcode, argument, offset after it and its caches) for each instruction."""
    extended, position, size = 0, 0, len(code)
    while position < size:
        number, argument = code[position], code[position + 1] | extended
        offset = position
        position += 2
        while position < size and code[position] == 0:  # CACHE
            position += 2
        extended = argument << 8 if number == opcode.EXTENDED_ARG else 0
        yield offset, number, argument, position


def index_of_offsets(raw: list[tuple[int, int, int, int]], size: int) -> dict[int, int]:
    """{offset: index of the kept instruction there, or the next kept one}."""
    index_at, index = {}, 0
    for offset, number, _, after in raw:
        for unit in range(offset, after, 2):
            index_at[unit] = index
        if opcode.opname[number] not in SKIPPED:
            index += 1
            for unit in range(offset + 2, after, 2):
                index_at[unit] = index
    index_at[size] = index
    return index_at


def exception_table(table: bytes):
    """Yields (start, end, target, depth, lasti) with byte offsets; entries do not overlap."""
    stream = iter(table)

    def varint(first: int) -> int:
        value, byte = first & 63, first
        while byte & 64:
            byte = next(stream)
            value = value << 6 | byte & 63
        return value

    for first in stream:
        start = 2 * varint(first)
        end = start + 2 * varint(next(stream))
        target = 2 * varint(next(stream))
        depth = varint(next(stream))
        yield start, end, target, depth >> 1, bool(depth & 1)
