"""Lists: executables as functions of the list of their inputs, which they empty.

    call = callable_of(executable, runtime)
    call([x, weight])        the results, by native code where the process allows it

Nothing is checked: who calls has made the inputs, or guards saw to them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from preheat.ir.plan import Image
from preheat.ir.trace import Signature
from preheat.run.device import Context, context
from preheat.run.driver import Program
from preheat.run.entry import builtin
from preheat.run.executable import Executable
from preheat.run.library import Fault
from preheat.run.reach import Origin


class _NoRows:
    """What is called was made by its own forward: no guards."""

    address = count = 0


def callable_of(executable: Executable, runtime: Image | None) -> Callable[[list], Sequence]:
    """A builtin that runs `executable`, or that itself."""
    given = arguments_of(executable, runtime, context())
    return executable if given is None else builtin(Program(*given), runtime)


def arguments_of(executable: Executable, runtime: Image | None, present: Context | None) -> tuple | None:
    """What a `Program` of `executable` is made from; None where none can run."""
    needed = {"native", "grad_mode"} if executable.is_grad_off else {"native"}
    if runtime is None or present is None or not needed <= present.have:
        return None
    origins = [Origin("deep", place) for place in range(len(executable.plan.inputs))]
    return (
        executable, present, origins, (), "tuple", None, _emptied, _failed, _NoRows, Signature(1), None)


def _emptied(given: list) -> tuple:
    """What the list held."""
    held = tuple(given)
    given.clear()
    return held


def _failed(reason: int, detail: int, arguments: tuple, names: tuple) -> Any:
    raise Fault("a kernel found an index out of range or a division by zero", detail)
