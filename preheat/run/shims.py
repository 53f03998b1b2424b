"""Library calls that torch offers as C shims: no Python objects parsed, no overload resolved.

    b4 = aten.mm.default(b0, b1)      ->   aoti_torch_cpu_mm_out(b4, b0, b1), b4 made before
    b4 = aten.convolution.default(..) ->   aoti_torch_cpu_convolution(b0, b1, &b2, .., &b4)

Words and doubles follow from the overload's schema, as torch's generator of the shims has them: a
Tensor is a handle, an optional one the address of a handle, a list a pointer and a length, a float
a double, and so is a result: a handle, undefined or not, or an int64. Each row of `SHIMS` is verified once a process on an example against the overload itself;
a shim that is absent or differs is left to Python (`run/library.py`).

Source: torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h (stable C interface of AOTInductor).
"""

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.bridge.ambient import is_autocast_on
from preheat.bridge.ops import Parameter, arguments, decode, overload, schema
from preheat.ir.graph import Arg, Item, Op, Ref
from preheat.ir.hinted import Hinted
from preheat.ir.plan import LibraryCall, Plan
from preheat.ir.records import SHIM_DOUBLE_LIMIT, SHIM_WORD_LIMIT
from preheat.ir.scalar import Scalar
from preheat.run.device import Context, address_of, context, function_of, wrapped


@dataclass(frozen=True)
class Shim:
    """`symbol` computes the overload. takes_out: its first word is the result, made before.

    example    arguments by position, tensors numbered by Ref, and those tensors
    numbers    the places of results that are ints
    compared   how many results, from the first on, are the same each time; the others may be
               undefined, or whatever was in memory
    """

    symbol: str
    takes_out: bool
    example: Callable[[], tuple[tuple[Arg, ...], tuple[torch.Tensor, ...]]]
    numbers: tuple[int, ...] = ()
    compared: int | None = None


@dataclass(frozen=True)
class ShimCall:
    """Arguments of one call: words as (kind of records.SHIM_WORDS or "array", value), doubles.

    A "tensor" or "optional" word has the number of a Ref, an "array" the words it points to.
    numbers: the places of results that are ints, of which the shim stores one word.
    """

    address: int
    takes_out: bool
    words: tuple[tuple[str, Any], ...]
    doubles: tuple[float, ...]
    numbers: tuple[int, ...] = ()


def shim_call(call: LibraryCall, context: Context, device: str = "cpu") -> ShimCall | None:
    """How `call` on tensors of `device` goes through a C shim, or None when it cannot."""
    kind = device.partition(":")[0]
    if call.op not in SHIMS.get(kind, {}) or "shims" not in context.have:
        return None
    if not _is_right(call.op, context, device):
        return None
    return _call(call.op, call.args, call.attrs, kind)


def verify(plan: Plan, device: str) -> None:
    """Verifies the shims that library calls of `plan` go through, where it has not been done: the first attention
    of cuDNN takes half a second, which is time to spare while kernels are compiled."""
    kind, known = device.partition(":")[0], context()
    if "shims" in known.have and not is_autocast_on():  # under which they are not used
        for op in {call.op for call in plan.calls if isinstance(call, LibraryCall)} & SHIMS.get(kind, {}).keys():
            _is_right(op, known, device)


def _call(
    op: str, args: tuple[Arg, ...], attrs: tuple[tuple[str, Arg], ...], kind: str
) -> ShimCall | None:
    shim = SHIMS[kind][op]
    function = function_of(shim.symbol, f"torch_{kind}")
    if function is None:
        return None
    if any(isinstance(arg, Item) for arg in (*args, *(arg for _, arg in attrs))):
        return None
    given = arguments(Op(op, args, (), (), attrs))
    words: list[tuple[str, Any]] = []
    doubles: list[float] = []
    for parameter in schema(op).parameters:
        value = given[parameter.name]
        if isinstance(value, Scalar) and value.type != "int":
            return None
        if parameter.type in ("float", "number"):  # torch's shims take a Scalar as a double
            if isinstance(value, Scalar):
                return None
            doubles.append(float(value))
            continue
        made = _words(parameter, value)
        if made is None:
            return None
        words += made
    if len(words) + len(schema(op).returns) > SHIM_WORD_LIMIT or len(doubles) > SHIM_DOUBLE_LIMIT:
        return None
    return ShimCall(
        address_of(function), shim.takes_out, tuple(words), tuple(doubles), shim.numbers)


def _words(parameter: Parameter, value: Any) -> list[tuple[str, Any]] | None:
    """The words of one argument; None for a type or a value that is not passed this way."""
    if value is None:
        return [("word", 0)] if parameter.type.startswith("Optional") else None
    if isinstance(value, Ref):
        return [("tensor" if parameter.type == "Tensor" else "optional", value.id)]
    if parameter.type in ("bool", "int") and type(value) in (bool, int, Hinted):
        return [("word", int(value) if type(value) is bool else value)]
    if parameter.type == "List[int]" and all(type(v) in (int, Hinted) for v in value):
        return [("array", tuple(value)), ("word", len(value))]
    if parameter.type == "Optional[float]":
        return [("array", (struct.unpack("<q", struct.pack("<d", value))[0],))]
    return None


# ---------------------------------------------------------------------------- verification
@functools.cache
def _is_right(op: str, context: Context, device: str) -> bool:
    """Whether the shim of `op` gives what the overload gives, on the row's example."""
    kind = device.partition(":")[0]
    args, tensors = SHIMS[kind][op].example()
    tensors = tuple(tensor.to(device) for tensor in tensors)
    call = _call(op, args, (), kind)
    if call is None:
        return False
    try:
        expected = overload(op)(*decode(args, tensors))
    except RuntimeError:  # not on this device: then the program's own call is the library's matter
        return False
    results = (expected,) if isinstance(expected, torch.Tensor) else tuple(expected)
    made = _run(call, tensors, results, context)
    compared = SHIMS[kind][op].compared
    return made is not None and all(map(torch.equal, made[:compared], results[:compared]))


def _run(call: ShimCall, tensors, results, context: Context) -> list[Any] | None:
    """What the driver does with a ShimCall, through ctypes: its results, None for what is undefined.
    None when the shim reports an error."""
    kept: list[Any] = []
    words: list[int] = []
    out = torch.empty_like(results[0]) if call.takes_out else None

    def cell(*values: int) -> int:
        kept.append((ctypes.c_int64 * len(values))(*values))
        return ctypes.addressof(kept[-1])

    def handle(tensor: torch.Tensor) -> int:
        return id(tensor) + context.words["tensor_offset"]

    for kind, value in ([("out", 0)] if call.takes_out else []) + list(call.words):
        words.append(
            {
                "out": lambda: handle(out),
                "word": lambda: value,
                "array": lambda: cell(*value),
                "tensor": lambda: handle(tensors[value]),
                "optional": lambda: cell(handle(tensors[value])),
            }[kind]()
        )
    cells = [] if call.takes_out else [cell(0) for _ in results]
    words += cells + [0] * (SHIM_WORD_LIMIT - len(words) - len(cells))
    doubles = [*call.doubles, *(0.0 for _ in range(SHIM_DOUBLE_LIMIT - len(call.doubles)))]
    types = [ctypes.c_int64] * SHIM_WORD_LIMIT + [ctypes.c_double] * SHIM_DOUBLE_LIMIT
    if ctypes.PYFUNCTYPE(ctypes.c_int32, *types)(call.address)(*words, *doubles):
        return None
    if out is not None:
        return [out]
    wrap = context.words["wrap_tensor"]
    return [
        ctypes.c_int64.from_address(at).value if place in call.numbers
        else wrapped(wrap, ctypes.c_void_p.from_address(at))
        for place, at in enumerate(cells)
    ]


def _product_example(*sizes: int):
    a = torch.arange(float(torch.Size(sizes).numel()), device="cpu").view(sizes)
    return (Ref(0), Ref(1)), (a.bfloat16(), a.mT.bfloat16())


def _sum_example(*sizes: int):
    (a, b), (x, y) = _product_example(*sizes)
    return (Ref(2), a, b), (x, y, torch.ones(sizes[-2], device="cpu").bfloat16())


def _attention_example():
    q, k, v = torch.linspace(-1, 1, 3 * 48, device="cpu").view(3, 1, 2, 4, 6)
    mask = torch.zeros(1, 1, 4, 4, device="cpu")
    return (Ref(0), Ref(1), Ref(2), 0.0, False), (q, k, v, mask)


def _half_attention_example(*between: Arg):
    """bfloat16, 64 tokens of 2 heads of 64: every attention of a GPU takes that. `between`: what
    stands between the tensors and (dropout, causal)."""
    q, k, v = torch.linspace(-1, 1, 3 << 13, device="cpu").view(3, 1, 2, 64, 64).bfloat16()
    return (Ref(0), Ref(1), Ref(2), *between, 0.0, True), (q, k, v)


def _convolution_example():
    x, w = torch.linspace(-1, 1, 72, device="cpu").view(1, 2, 6, 6), torch.ones(
        3, 2, 2, 2, device="cpu"
    )
    arguments = (Ref(0), Ref(1), Ref(2), (2, 1), (1, 0), (1, 1), False, (0, 0), 1)
    return arguments, (x, w, torch.arange(3.0, device="cpu"))


_CPU: dict[str, Shim] = {
    "aten.mm.default": Shim("aoti_torch_cpu_mm_out", True, lambda: _product_example(3, 5)),
    "aten.bmm.default": Shim("aoti_torch_cpu_bmm_out", True, lambda: _product_example(2, 3, 5)),
    "aten.addmm.default": Shim("aoti_torch_cpu_addmm_out", True, lambda: _sum_example(3, 5)),
    "aten.baddbmm.default": Shim("aoti_torch_cpu_baddbmm_out", True, lambda: _sum_example(2, 3, 5)),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": Shim(
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", False, _attention_example
    ),
    "aten.convolution.default": Shim("aoti_torch_cpu_convolution", False, _convolution_example),
}
_CUDA: dict[str, Shim] = {
    "aten.mm.default": Shim("aoti_torch_cuda_mm_out", True, lambda: _product_example(3, 5)),
    "aten.bmm.default": Shim("aoti_torch_cuda_bmm_out", True, lambda: _product_example(2, 3, 5)),
    "aten.addmm.default": Shim("aoti_torch_cuda_addmm_out", True, lambda: _sum_example(3, 5)),
    "aten._addmm_activation.default": Shim(
        "aoti_torch_cuda__addmm_activation", False, lambda: _sum_example(3, 5)
    ),
    "aten.baddbmm.default": Shim("aoti_torch_cuda_baddbmm_out", True, lambda: _sum_example(2, 3, 5)),
    "aten.convolution.default": Shim(
        "aoti_torch_cuda_convolution", False, _convolution_example
    ),
    "aten._scaled_dot_product_flash_attention.default": Shim(
        "aoti_torch_cuda__scaled_dot_product_flash_attention", False, _half_attention_example,
        numbers=(4, 5), compared=2,
    ),
    "aten._scaled_dot_product_cudnn_attention.default": Shim(
        "aoti_torch_cuda__scaled_dot_product_cudnn_attention", False,
        lambda: _half_attention_example(None, False), numbers=(4, 5), compared=1,
    ),
    "aten._scaled_dot_product_efficient_attention.default": Shim(
        "aoti_torch_cuda__scaled_dot_product_efficient_attention", False,
        lambda: _half_attention_example(None, False), compared=1,
    ),
}
SHIMS: dict[str, dict[str, Shim]] = {"cpu": _CPU, "cuda": _CUDA}
