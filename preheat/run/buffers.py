"""Where a plan's buffers lie, and the tensors that show them.

    b0 input 0   f32[8, 128]          root b0, byte 0
    b4 view b0   f32[128] + 256       root b0, byte 1024
    b5 arena 64  f32[8]               root b5, byte 64 of the arena

Shared by the Python executor and the native driver: both must agree on every byte. All sizes are
numbers here; a symbolic one raises Unsupported.
"""

import struct
from collections.abc import Callable

import torch

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError, Unsupported
from preheat.bridge.ops import dtype as torch_dtype
from preheat.ir.graph import refs_of
from preheat.ir.hinted import Hinted
from preheat.ir.loop import NUMBER, is_on_host, sizes_of
from preheat.ir.plan import Call, KernelCall, LibraryCall, Plan, ProductCall
from preheat.ir.scalar import Dim, Number, Scalar
from preheat.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Place:
    """`offset_bytes` from the start of buffer `root` (no view), or from that of the arena."""

    root: int
    kind: str
    offset_bytes: int


def places(plan: Plan) -> tuple[Place, ...]:
    """Where each buffer of `plan` is. Raises InternalError for a view that leads nowhere."""
    found: list[Place] = []
    for number, buffer in enumerate(plan.buffers):
        offset, root, steps = 0, number, 0
        while plan.buffers[root].kind == "view":
            base = plan.buffers[root].base
            offset += known(plan.buffers[root].index) * plan.buffers[base].type.itemsize
            root, steps = base, steps + 1
            if steps > len(plan.buffers):
                raise InternalError(f"buffer {number} is a view of itself")
        kind = plan.buffers[root].kind
        if kind == "arena":
            offset += known(plan.buffers[root].index)
        found.append(Place(root, kind, offset))
    return tuple(found)


def known(dim: Dim) -> int:
    """`dim`, which must be a number, or a hinted one where tables for many sizes are made."""
    if isinstance(dim, Scalar) and not isinstance(dim, Hinted):
        raise Unsupported("symbolic", f"the size {dim} is only known at run time")
    return dim


def word_of(number: Number) -> int:
    """The 8-byte word by which a kernel gets `number`."""
    if number.__class__ is float:
        return struct.unpack("<q", struct.pack("<d", number))[0]
    return known(number)


def number_of(word: int) -> float:
    """The float that a word is."""
    return struct.unpack("<d", struct.pack("<q", word))[0]


def extent_bytes(type: TensorType) -> int:
    """From the first byte of a tensor of `type` to the one after its last; 0 if it is empty."""
    if known(type.elems) == 0:
        return 0
    return (sum((s - 1) * t for s, t in zip(type.sizes, type.strides)) + 1) * type.itemsize


def empty(type: TensorType) -> torch.Tensor:
    """A fresh tensor of exactly `type`."""
    return torch.empty_strided(
        type.sizes, type.strides, dtype=torch_dtype(type.dtype), device=type.device
    )


def aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """What `tensor` holds, with its strides, in memory that begins where torch's allocator begins."""
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    with torch.no_grad():
        return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def new_arena(size_bytes: int, device: str = "cpu") -> torch.Tensor:
    """Memory for one call at a time: a uint8 tensor that serves calls in any mode."""
    with torch.inference_mode(False):
        return torch.empty(max(size_bytes, 1), dtype=torch.uint8, device=device)


def device_of(plan: Plan) -> str:
    """Where the plan runs: the device of its buffers, numbers in the host's memory apart."""
    return next((b.type.device for b in plan.buffers if b.type.device != "cpu"), "cpu")


def is_number(plan: Plan, call: KernelCall, place: int) -> bool:
    """Whether the host passes parameter `place` of a kernel by value."""
    return plan.kernels[call.kernel].params[place].name == NUMBER


def runs_on_host(plan: Plan, call: Call) -> bool:
    """Whether `call`, of a plan for a GPU, is of a kernel that the host runs."""
    return isinstance(call, KernelCall) and is_on_host(plan.kernels[call.kernel])


def sizes_at(plan: Plan, call: KernelCall) -> dict[Scalar, Number]:
    """What the expressions of a kernel are in `call`."""
    return dict(zip(sizes_of(plan.kernels[call.kernel]), call.sizes, strict=True)) if call.sizes else {}


def show_bytes(memory: torch.Tensor, offset_bytes: int, type: TensorType) -> torch.Tensor:
    """The tensor of `type` at `offset_bytes` of the uint8 tensor `memory`."""
    part = memory[offset_bytes : offset_bytes + extent_bytes(type)].view(torch_dtype(type.dtype))
    return part.as_strided(type.sizes, type.strides, part.storage_offset())


def show_view(base: torch.Tensor, offset_bytes: int, type: TensorType) -> torch.Tensor:
    """The view of `type`, `offset_bytes` after the first element of `base`."""
    if torch_dtype(type.dtype) is not base.dtype:
        raise Unsupported("alias", f"a view of {base.dtype} memory as {type.dtype}")
    return base.as_strided(
        type.sizes, type.strides, base.storage_offset() + offset_bytes // type.itemsize
    )


def view_maker(
    base: TensorType, type: TensorType, offset_bytes: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a tensor of type `base` to its view of `type`, `offset_bytes` further."""
    if base.dtype != type.dtype:
        raise Unsupported("alias", f"a view of {base.dtype} memory as {type.dtype}")
    sizes, strides = tuple(map(known, type.sizes)), tuple(map(known, type.strides))
    elems = offset_bytes // type.itemsize

    def view(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(sizes, strides, tensor.storage_offset() + elems)

    return view


def detached_maker(
    base: TensorType, type: TensorType, offset_bytes: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """As `view_maker`, of what `base` is for who has detached it."""
    if type == base and not offset_bytes:
        return torch.Tensor.detach
    view = view_maker(base, type, offset_bytes)
    return lambda tensor: view(tensor).detach()


def seen_view_maker(
    base: TensorType, type: TensorType, offset_bytes: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """As `view_maker`, where grad mode is off for the calls of a plan, and on for the program: a view of
    what requires grad was made under `no_grad` there too, if no gradient leaves."""
    view = view_maker(base, type, offset_bytes)

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not tensor.requires_grad):
            return view(tensor)

    return seen


def has_type(tensor: torch.Tensor, type: TensorType) -> bool:
    """Whether `tensor` has exactly the dtype, sizes and strides of `type`."""
    return (
        tensor.dtype is torch_dtype(type.dtype)
        and tensor.shape == type.sizes
        and tensor.stride() == type.strides
    )


def written_buffers(plan: Plan, call: Call) -> tuple[int, ...]:
    """The buffers whose memory `call` changes."""
    if isinstance(call, KernelCall):
        params = plan.kernels[call.kernel].params
        return tuple(b for p, b in zip(params, call.buffers, strict=True) if p.role != "in")
    if isinstance(call, ProductCall):
        return (call.out,)
    return tuple(b for b in call.results if b >= 0)


def read_buffers(plan: Plan, call: Call) -> tuple[int, ...]:
    """The buffers that `call` reads."""
    if isinstance(call, KernelCall):
        params = plan.kernels[call.kernel].params
        return tuple(b for p, b in zip(params, call.buffers, strict=True) if p.role != "out")
    if isinstance(call, ProductCall):
        return (call.a, call.b, call.out) if call.beta else (call.a, call.b)
    return library_refs(call)


def used_buffers(plan: Plan, call: Call) -> tuple[int, ...]:
    """The buffers that `call` reads or changes."""
    return tuple(dict.fromkeys((*read_buffers(plan, call), *written_buffers(plan, call))))


def library_refs(call: LibraryCall) -> tuple[int, ...]:
    """The buffers that a library call takes, each once, in order of appearance."""
    arguments = (*call.args, *(arg for _, arg in call.attrs))
    return tuple(dict.fromkeys(number for arg in arguments for number in refs_of(arg)))


def writes_inputs(plan: Plan) -> tuple[tuple[int, ...], int]:
    """(input buffers that the plan writes, in order; number of the first call that does).

    The number is len(plan.calls) when none does.
    """
    where = places(plan)
    written: dict[int, None] = {}
    first = len(plan.calls)
    for number, call in enumerate(plan.calls):
        roots = [where[b].root for b in written_buffers(plan, call) if where[b].kind == "input"]
        if roots:
            first = min(first, number)
        written.update(dict.fromkeys(roots))
    return tuple(written), first
