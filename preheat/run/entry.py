"""Entries: the callable of one bound variant. A native builtin where the process allows it.

    entry = make_entry(trace, found, rows, executable, rebuild, slow)
    entry.call(x)  ->  guards, plan, result; or slow(reason, detail, (x,), ()) if unusual

`slow(reason, detail, arguments, names)` is Python: reason is a row of `records.REASONS`, detail the
number of the guard row or the bits of the error flag, arguments all objects of the call with the
keyword ones last, names the keywords' names. What it returns is the call's result. A call of
another signature, or one for which a row that decides differs, gives `miss` at once. At reason
"fault" nothing outside has changed, so it may run the program eager; at "late_fault" it must raise.

Guarantees: reference counts are exact; two threads and a recursion may be inside one entry;
exceptions of library calls before the first write to an input become faults, later ones propagate.
Without the native driver `call` goes to `slow` at once (reason "guard"), which checks in Python and
then uses `run`.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from preheat.ir.hinted import Book
from preheat.ir.plan import Image, KernelCall
from preheat.ir.records import REASONS
from preheat.ir.trace import Trace
from preheat.run.buffers import read_buffers
from preheat.run.device import Context
from preheat.run.driver import FilledProgram, Program, ProgramStencil
from preheat.run.executable import Executable
from preheat.run.load import Loaded, load
from preheat.run.reach import reach
from preheat.run.recipes import Rebuild

Slow = Callable[[int, int, tuple, tuple], Any]

_METH_FASTCALL_KEYWORDS = 0x0080 | 0x0002


class Entry:
    """`call` is what to call; `run` replays from Python.

    An entry is for the objects and rows it was made with: when either changes, make another one. A
    call that is under way in the old one stays right, since its program holds what it uses.
    """

    def __init__(
        self,
        call: Callable,
        program: Program | None,
        executable: Executable,
        rebuild: Rebuild,
        inputs: Sequence[int],
    ):
        self.call = call
        self._program, self._executable, self._rebuild, self._inputs = (
            program,
            executable,
            rebuild,
            inputs,
        )

    @property
    def is_native(self) -> bool:
        return self._program is not None

    def run(self, found: Sequence[Any]) -> Any:
        """The result, from Python, for the objects `found` of all sources. Raises Fault."""
        values = self._executable([found[source] for source in self._inputs])
        return self._rebuild.function(*values, *(found[source] for source in self._rebuild.sources))


def make_entry(
    trace: Trace,
    found: Sequence[Any],
    rows: Any,
    executable: Executable,
    rebuild: Rebuild,
    slow: Slow,
    *,
    runtime: Image | None = None,
    context: Context | None = None,
    live: Sequence[Any] = (),
    miss: Any = None,
) -> Entry:
    """The entry of a one-node trace whose sources resolved to `found`.

    rows      native guard rows with `address` and `count`, or None when guards have none
    runtime   the image of checker and driver; without it, without `rows` or without a context that
              has "native" the entry is a Python function
    live      the trace's live objects
    miss      what a native entry gives for a call that is not its own beyond doubt
    """
    (node,) = trace.nodes
    needed = {"native", "grad_mode"} if executable.is_grad_off else {"native"}
    if rows is None or runtime is None or context is None or not needed <= context.have:
        return Entry(_python_call(slow), None, executable, rebuild, node.inputs)
    words = _words(rows, node.inputs, rebuild.sources, executable)
    given = _program_arguments(
        trace, found, rows, executable, rebuild, slow, context, live, miss, words)
    program = Program(*given)
    return Entry(builtin(program, runtime), program, executable, rebuild, node.inputs)


class EntryStencil:
    """Native entries of one plan at any sizes, made by `at` from the same tables.

    executable   of a plan with hinted sizes;  symbols: its own;  book: what they are taken for
    The other arguments are those of `make_entry`, without what may be missing there.
    """

    def __init__(
        self, trace: Trace, found: Sequence[Any], rows: Any, executable: Executable,
        rebuild: Rebuild, slow: Slow, symbols: Sequence[str], book: Book, *, runtime: Image,
        context: Context, live: Sequence[Any] = (), miss: Any = None,
    ):
        given = _program_arguments(
            trace, found, rows, executable, rebuild, slow, context, live, miss)
        self._program, self._runtime = ProgramStencil(symbols, book, *given), runtime

    def at(self, sizes: Mapping[str, int]) -> Callable | None:
        """What to call at these sizes; None if the tables are not for them."""
        program = self._program.at(sizes)
        return None if program is None else builtin(program, self._runtime)


def _program_arguments(
    trace: Trace, found: Sequence[Any], rows: Any, executable: Executable, rebuild: Rebuild,
    slow: Slow, context: Context, live: Sequence[Any], miss: Any,
    words: Mapping[int, int] = MappingProxyType({}),
) -> tuple:
    """What a `Program` is made from."""
    (node,) = trace.nodes
    reached = reach(
        trace, (*node.inputs, *rebuild.sources), found, live, executable.plan.inputs, words)
    count = len(node.inputs)
    return (
        executable, context, reached.origins[:count], reached.origins[count:], rebuild.shape,
        rebuild.function, reached.deep, slow, rows, trace.signature, miss)


def _words(
    rows: Any, inputs: Sequence[int], others: Sequence[int], executable: Executable,
) -> dict[int, int]:
    """The cells of the numbers that kernels alone take, by source: what else takes one needs a tensor."""
    plan = executable.plan
    cells = rows.words
    roots = {
        executable.places[b].root
        for call in plan.calls if not isinstance(call, KernelCall)
        for b in read_buffers(plan, call)
    }
    read = {plan.buffers[b].index for b in roots if plan.buffers[b].kind == "input"}
    read |= {o.base for o in plan.outputs if o.alias == "input"}
    taken = {
        buffer.index for buffer in plan.buffers
        if buffer.kind == "input" and buffer.type.dtype in _WORD_DTYPES}
    return {
        source: ctypes.addressof(cells[source])
        for place, source in enumerate(inputs)
        if source in cells and place in taken and place not in read and source not in others
    }


_WORD_DTYPES = frozenset(("float64", "int64"))  # what floats and ints are for a plan


def beside(entry: Entry, rows: Any, runtime: Image) -> Entry:
    """`entry` behind other guard rows, from the same tables; itself when it is not native."""
    if not entry.is_native:
        return entry
    program = entry._program.beside(rows)
    return Entry(
        builtin(program, runtime), program, entry._executable, entry._rebuild, entry._inputs)


def builtin(program: Program | FilledProgram, runtime: Image) -> Callable:
    """A builtin function that runs `program`, which it keeps alive."""
    definition = _definition(load_runtime(runtime))
    payload = program.address.to_bytes(8, "little")
    # CPython keeps `self` and the module; the definition, and the code that it has, hang on the program
    program.hold(definition)
    return _new_builtin()(ctypes.addressof(definition), payload, program)


@functools.lru_cache(maxsize=4)
def load_runtime(runtime: Image) -> Loaded:
    """The runtime image in memory, once a process."""
    return load(runtime)


@functools.lru_cache(maxsize=4)
def _definition(driver: Loaded) -> "_MethodDefinition":
    """What CPython calls for each entry of a runtime image."""
    made = _MethodDefinition(
        b"preheat_entry",
        driver.address("preheat_entry"),
        _METH_FASTCALL_KEYWORDS,
        b"A compiled call of Preheat.",
    )
    made.driver = driver
    return made


def _python_call(slow: Slow) -> Callable:
    guard = REASONS.index("guard")

    def call(*args: Any, **kwargs: Any) -> Any:
        return slow(guard, -1, (*args, *kwargs.values()), tuple(kwargs))

    return call


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@functools.cache
def _new_builtin() -> Callable:
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object
    )
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))
