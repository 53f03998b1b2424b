"""Plans run in plain torch, loop by loop: the oracle of `schedule` and of the code generators.

    run_plan(plan, [x, weight])  ->  [outputs]        writes to the inputs included

Memory is real: inputs, outputs and the arena are flat tensors, every load and store is an element
offset that is checked to be in bounds, and blocks of the outer range run in a shuffled order, so
that a kernel whose rows depend on each other, or a buffer that is reused too early, gives wrong
numbers. `Fault` is raised when a check fails. Elementwise ops mean what `bridge.interpret` says.
"""

import random

import torch

from preheat.bridge.interpret import MEANINGS
from preheat.bridge.ops import decode, dtype, overload
from preheat.bridge.uniform import words
from preheat.ir.graph import Op, Ref, refs_of
from preheat.ir.loop import ANY, Kernel, LoopOp, Stage
from preheat.ir.plan import Buffer, KernelCall, LibraryCall, Plan, ProductCall
from preheat.ir.types import TensorType, tensor

BLOCK = 7  # outer points that run at once: more than one, and no divisor of usual sizes


class Fault(Exception):
    """A check failed: the call must run eager."""


class Memory:
    """A flat tensor of one dtype, and where in it the first element of a buffer is."""

    def __init__(self, flat: torch.Tensor, start: int):
        self.flat, self.start = flat, start


def run_plan(plan: Plan, inputs: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    """The results of `plan`; raises Fault where a kernel's check fails."""
    return _Run(plan, inputs, random.Random(seed)).run()


class _Run:
    def __init__(self, plan: Plan, inputs: list[torch.Tensor], order: random.Random):
        self.plan, self.order = plan, order
        self.arena = torch.full((max(plan.arena_bytes, 1),), 0xCD, dtype=torch.uint8)
        self.values: list[torch.Tensor | None] = []
        self.inputs = inputs
        self.is_wrong = False
        for buffer in plan.buffers:
            self.values.append(self._make(buffer))

    def _make(self, buffer: Buffer) -> torch.Tensor | None:
        type = buffer.type
        if buffer.kind == "input":
            return self.inputs[buffer.index]
        if buffer.kind == "arena":
            assert buffer.index % 64 == 0
            part = self.arena[buffer.index : buffer.index + span(type) * type.itemsize].view(
                dtype(type.dtype)
            )
            return part.as_strided(type.sizes, type.strides, part.storage_offset())
        if buffer.kind == "output":
            made = torch.empty_strided(type.sizes, type.strides, dtype=dtype(type.dtype))
            return made.fill_(1) if made.dtype == torch.bool else made.fill_(77)
        return None

    def value(self, number: int) -> torch.Tensor:
        buffer = self.plan.buffers[number]
        if buffer.kind == "view":
            base = self.value(buffer.base)
            return base.as_strided(
                buffer.type.sizes, buffer.type.strides, base.storage_offset() + buffer.index
            )
        return self.values[number]

    def run(self) -> list[torch.Tensor]:
        writers = [k for k, call in enumerate(self.plan.calls) if self._writes_input(call)]
        for number, call in enumerate(self.plan.calls):
            if isinstance(call, KernelCall):
                kernel = self.plan.kernels[call.kernel]
                has_check = any(op.op == "check" for stage in kernel.stages for op in stage.body)
                assert not (has_check and writers and number >= writers[0]), "a check after a write"
                self._kernel(kernel, call)
                if self.is_wrong and writers and number + 1 == writers[0]:
                    raise Fault
            elif isinstance(call, ProductCall):
                a, b, out = (self.value(k) for k in (call.a, call.b, call.out))
                out.copy_(torch.matmul(a, b) + (call.beta * out if call.beta else 0))
            else:
                self._library(call)
        if self.is_wrong:
            raise Fault
        return self._results()

    def _writes_input(self, call) -> bool:
        if not isinstance(call, KernelCall):
            return False
        params = self.plan.kernels[call.kernel].params
        return any(
            p.role != "in" and self.plan.buffers[b].kind == "input"
            for p, b in zip(params, call.buffers)
        )

    def _library(self, call: LibraryCall) -> None:
        named = {
            r: self.value(r)
            for arg in (*call.args, *(a for _, a in call.attrs))
            for r in refs_of(arg)
        }
        for number, value in named.items():
            type = self.plan.buffers[number].type
            assert tuple(value.shape) == type.sizes
        args = [decode(a, named) for a in call.args]
        found = overload(call.op)(*args, **{k: decode(a, named) for k, a in call.attrs})
        found = found if isinstance(found, (tuple, list)) else [found]
        for number, value in zip(call.results, found, strict=True):
            if number >= 0:
                type = self.plan.buffers[number].type
                assert tuple(value.shape) == type.sizes
                assert all(
                    n <= 1 or a == b for n, a, b in zip(type.sizes, type.strides, value.stride())
                )
                self.values[number] = value

    def _results(self) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for output in self.plan.outputs:
            if output.alias:
                base = (self.inputs if output.alias == "input" else results)[output.base]
                type = output.type
                results.append(
                    base.as_strided(type.sizes, type.strides, base.storage_offset() + output.offset)
                )
            else:
                results.append(self.value(output.buffer))
        return results

    # ------------------------------------------------------------------ kernels
    def _kernel(self, kernel: Kernel, call: KernelCall) -> None:
        extents = [call.extent if a.extent == ANY else a.extent for a in kernel.axes]
        assert call.extent == product(extents[: kernel.parallel])
        memories = [flat_of(self.value(b)) for b in call.buffers]
        for memory, param in zip(memories, kernel.params):
            if memory.flat.is_complex():  # moved as integers
                memory.flat = memory.flat.view(dtype(param.dtype))
            assert memory.flat.dtype == dtype(param.dtype)
        for op in (op for stage in kernel.stages for op in stage.body):
            if op.op == "store" and op.how:  # a sum over positions that come one after another
                memories[op.param].flat.zero_()
        points = list(range(product(extents)))
        blocks = [points[k : k + BLOCK] for k in range(0, len(points), BLOCK)]
        self.order.shuffle(blocks)
        for block in blocks:
            self._block(kernel, memories, torch.tensor(block, dtype=torch.int64))

    def _block(self, kernel: Kernel, memories: list[Memory], points: torch.Tensor) -> None:
        outer: dict[str, torch.Tensor] = {}
        rest = points
        for axis in reversed(kernel.axes):
            if axis.extent == ANY:
                outer[axis.name] = rest
                continue
            outer[axis.name], rest = rest % axis.extent, rest // axis.extent
        carried: dict[int, torch.Tensor] = {}
        for stage in kernel.stages:
            self._stage(stage, outer, memories, carried)

    def _stage(
        self, stage: Stage, outer, memories: list[Memory], carried: dict[int, torch.Tensor]
    ) -> None:
        rank = len(stage.axes)
        shape = (len(next(iter(outer.values()))), *(a.extent for a in stage.axes))
        axes = {
            name: place.reshape(-1, *(1,) * rank).expand(shape) for name, place in outer.items()
        }
        for k, axis in enumerate(stage.axes):
            view = [-1 if i == k + 1 else 1 for i in range(rank + 1)]
            axes[axis.name] = torch.arange(axis.extent).reshape(view).expand(shape)

        def known(number: int) -> torch.Tensor:
            value = local[number] if number in local else carried[number]
            return (
                value if value.dim() == rank + 1 else value.reshape(-1, *(1,) * rank).expand(shape)
            )

        local: dict[int, torch.Tensor] = {}
        for op in stage.body:
            value = self._op(op, known, axes, shape, memories)
            if op.op == "reduce":
                carried[op.id] = value  # only later stages may use it
            elif op.id >= 0:
                local[op.id] = value
                if op.keep or not stage.axes:
                    carried[op.id] = value

    def _op(self, op: LoopOp, known, axes, shape, memories: list[Memory]) -> torch.Tensor | None:
        if op.op in ("load", "store"):
            return self._access(op, known, axes, shape, memories[op.param])
        if op.op == "const":
            return torch.full(shape, op.other, dtype=dtype(op.dtype))
        if op.op == "axis":
            return axes[op.axis]
        args = [known(a) for a in op.args]
        if op.op == "uniform":
            place = torch.full(shape, op.index.base, dtype=torch.int64)
            for key, stride in op.index.terms:
                place = place + stride * (axes[key] if isinstance(key, str) else known(key))
            drawn = words(args[0].reshape(-1)[0], place >> 2, op.other)
            return (drawn.gather(-1, (place & 3)[..., None])[..., 0] >> 8).float() * 2.0**-24
        if op.op == "check":
            self.is_wrong |= not bool(args[0].all())
            return None
        if op.op == "reduce":
            return reduce(op, args[0])
        return elementwise(op, args)

    def _access(self, op: LoopOp, known, axes, shape, memory: Memory) -> torch.Tensor | None:
        offset = torch.full(shape, op.index.base, dtype=torch.int64)
        for key, stride in op.index.terms:
            offset = offset + stride * (axes[key] if isinstance(key, str) else known(key))
        offset = offset + memory.start
        mask = torch.ones(shape, dtype=torch.bool) if op.mask is None else known(op.mask)
        inside = (offset >= 0) & (offset < memory.flat.numel())
        assert bool((inside | ~mask).all()), f"{op} out of bounds"
        if op.op == "store":
            value = known(op.args[0])
            assert value.dtype == memory.flat.dtype, op
            if op.how:
                memory.flat.index_put_((offset,), value, accumulate=True)
                return None
            memory.flat[offset[mask]] = value[mask]
            return None
        found = memory.flat[torch.where(mask, offset, torch.zeros_like(offset))]
        return (
            found
            if op.mask is None
            else torch.where(mask, found, torch.full((), op.other, dtype=found.dtype))
        )


def elementwise(op: LoopOp, args: list[torch.Tensor]) -> torch.Tensor:
    """The meaning of an elementwise loop op, by the core row of its name."""
    if (
        op.op in ("floordiv", "truncdiv", "remainder", "fmod")
        and not args[1].dtype.is_floating_point
    ):
        args[1] = torch.where(args[1] == 0, torch.ones_like(args[1]), args[1])  # must not trap
    core = Op(op.op, (Ref(0),), (0,), (tensor(op.dtype, args[0].shape),), (("dtype", op.dtype),))
    result = MEANINGS[op.op](core, *args)
    assert result.dtype == dtype(op.dtype), f"{op} gives {result.dtype}"
    return result


def reduce(op: LoopOp, value: torch.Tensor) -> torch.Tensor:
    """Over all axes but the first: one value a row."""
    flat = value.reshape(value.shape[0], -1)
    if op.how in ("sum", "prod"):
        return getattr(torch, op.how)(flat, 1, dtype=dtype(op.dtype))
    return {"max": torch.amax, "min": torch.amin}.get(op.how, getattr(torch, op.how))(flat, 1)


def flat_of(value: torch.Tensor) -> Memory:
    """All memory from the lowest element of `value` to its highest."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(value.shape, value.stride()))
    high = sum(max(0, (n - 1) * s) for n, s in zip(value.shape, value.stride()))
    start = value.storage_offset() + low
    return Memory(value.as_strided((high - low + 1,), (1,), start), -low)


def span(type: TensorType) -> int:
    """Elements from the first to past the last."""
    return 0 if type.elems == 0 else sum((n - 1) * s for n, s in zip(type.sizes, type.strides)) + 1


def product(extents) -> int:
    """The product of numbers."""
    total = 1
    for extent in extents:
        total *= extent
    return total
