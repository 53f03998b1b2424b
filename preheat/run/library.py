"""Library calls as Python functions of their tensors: one straight-line function a call.

    b3 = aten.convolution.default(b0, b1, None, [1, 1], ...)
        ->  def library(b0, b1):
                r = op(b0, b1, None, c0, ...)
                is_same = r.stride() == strides0 and r.shape == sizes0
                if not is_same or r.dtype is not dtype0:
                    r = conform(r, type0)
                return r

The overload is bound once, constants are bound once, and a result is checked against the type that
the plan promised: what it depends on (an algorithm, a flag of the library) no guard sees.
"""

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from preheat.base.errors import InternalError, PreheatError
from preheat.bridge.ambient import no_autocast
from preheat.bridge.ops import constant, dtype as torch_dtype, overload
from preheat.ir.graph import Arg, Item, Ref, Token
from preheat.ir.plan import LibraryCall, Plan
from preheat.ir.scalar import Scalar
from preheat.ir.types import TensorType
from preheat.run.buffers import empty, has_type, known, library_refs


class Fault(PreheatError):
    """The plan cannot finish this call and has changed nothing outside: run the program eager.

    `flag` holds the bits of the error flag ("index", "zero_division"), 0 when it was no kernel.
    """

    def __init__(self, message: str, flag: int = 0):
        super().__init__(message)
        self.flag = flag


def library_function(
    plan: Plan, call: LibraryCall, is_autocast_off: bool = False
) -> tuple[Callable, tuple[int, ...]]:
    """(function, the buffers it takes as positional tensors).

    is_autocast_off   the call is made with autocast switched off: its casts are in the plan already

    The function returns the tensor of the one needed result, a tuple of the needed ones in the
    order of `call.results`, or None when none is needed. It raises what the overload raises, and
    Fault when a result is not what the plan expects.
    """
    types = tuple(plan.buffers[b].type if b >= 0 else None for b in call.results)
    return called(call, types, is_autocast_off), library_refs(call)


def called(
    call: LibraryCall, types: tuple[TensorType | None, ...], is_autocast_off: bool
) -> Callable:
    """The function of `library_function`. `types`: of the results, None for one that is not needed."""
    refs = library_refs(call)
    writer = _Writer()
    arguments = [writer.argument(arg) for arg in call.args]
    arguments += [f"{key}={writer.argument(arg)}" for key, arg in call.attrs]
    op = overload(call.op)
    is_list = any(given.type.kind() == "ListType" for given in op._schema.returns)  # perhaps of one
    op = getattr(op, "_op", op)  # the C function below the overload's Python wrapper, 0.4 us less
    names = {"op": op, "conform": conform, **writer.constants}
    if is_autocast_off:
        names["no_autocast"] = no_autocast()
    lines = [f"r = op({', '.join(arguments)})"]
    if is_autocast_off:
        lines = ["with no_autocast():", f"    {lines[0]}"]
    needed = [(k, type) for k, type in enumerate(types) if type is not None]
    is_single = len(call.results) == 1 and not is_list
    for k, type in needed:
        names |= {
            f"sizes{k}": torch.Size(map(known, type.sizes)),
            f"strides{k}": tuple(map(known, type.strides)),
            f"type{k}": type,
            f"dtype{k}": torch_dtype(type.dtype),
        }
        lines += [
            f"r{k} = r" if is_single else f"r{k} = r[{k}]",
            f"is_same = r{k}.stride() == strides{k} and r{k}.shape == sizes{k}",
            f"if not is_same or r{k}.dtype is not dtype{k}:",
            f"    r{k} = conform(r{k}, type{k})",
        ]
    results = [f"r{k}" for k, _ in needed]
    lines.append(
        "return "
        + (results[0] if len(results) == 1 else f"({', '.join(results)})" if results else "None")
    )
    text = f"def library({', '.join(f'b{r}' for r in refs)}):\n    " + "\n    ".join(lines) + "\n"
    exec(_code(text, call.op), names)  # noqa: S102 - our own text
    return names["library"]


@lru_cache(maxsize=256)
def _code(text: str, op: str) -> CodeType:
    return compile(text, f"<preheat library call {op}>", "exec")


def conform(tensor: Any, type: TensorType) -> torch.Tensor:
    """`tensor` in the layout of `type`: itself if it has it, else a copy. Or raises Fault."""
    if not isinstance(tensor, torch.Tensor):
        raise Fault(f"a library result should be {type} and is {tensor!r}")
    if has_type(tensor, type):
        return tensor
    if tensor.dtype is not torch_dtype(type.dtype) or tensor.shape != type.sizes:
        raise Fault(f"a library result should be {type} and is {tensor.dtype} {list(tensor.shape)}")
    made = target = empty(type)
    for axis, (size, stride) in enumerate(zip(type.sizes, type.strides)):
        if stride == 0 and size > 1:  # every element along the axis lies in one place
            target, tensor = target.narrow(axis, 0, 1), tensor.narrow(axis, 0, 1)
    target.copy_(tensor)
    return made


class _Writer:
    """Argument expressions of one call and the constants they name."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return f"b{arg.id}"
        if isinstance(arg, Item):
            return f"b{arg.id}.item()"
        if isinstance(arg, tuple):
            return "[" + ", ".join(self.argument(part) for part in arg) + "]"
        if isinstance(arg, Scalar):
            known(arg)
        if arg is None or type(arg) in (bool, str):
            return repr(arg)
        value = constant(arg) if isinstance(arg, Token) else arg
        if not isinstance(
            value,
            (int, float, complex, torch.dtype, torch.device, torch.layout, torch.memory_format),
        ):
            raise InternalError(f"no argument of a library call: {value!r}")
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name
