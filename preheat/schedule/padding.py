"""16-bit products of sums of a length that a GPU's library has slow kernels for: zeros added to the sums.

    %2: bf16[4096, 768] = matmul(%0: bf16[4096, 50257], %1: bf16[50257, 768])
      ->
    %3: bf16[4096, 50264] = pad(%0, high=(0, 7)); %4: bf16[50264, 768] = pad(%1, high=(7, 0))
    %2: bf16[4096, 768] = matmul(%3, %4)

The library's kernels load 16 bytes of a row at once; where the terms of a sum are not counted in such
steps it takes kernels that are several times slower: the gradient of GPT-2's last hidden state
cost 2.5 ms on an H200, padded 0.4. A computed value that is padded lies in padded memory for all
who read it, so that other products of it have aligned rows too. (`alignment` is about columns.)

Requires and gives level core. Guarantees: values are what they were; a product of few operations is
left as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.plan import Target
from preheat.ir.types import HALVES, TensorType, Type, tensor
from preheat.schedule.alignment import ALIGN_ELEMS

LEAST_SIZE = 256  # of a product that is worth copies of its operands
LEAST_TERMS = 1 << 31


def padded_products(graph: Graph, target: Target) -> Graph:
    """`graph` with the large products of odd sums padded."""
    if not target.is_gpu:
        return graph
    types = graph.types()
    odd = {op.result for op in graph.ops if op.name == "matmul" and _is_odd(op, types)}
    return _Padding(graph, types, odd).run() if odd else graph


def _is_odd(op: Op, types: Mapping[int, Type]) -> bool:
    if op.type.dtype not in HALVES or op.type.rank != 2:
        return False
    sizes = (*op.type.sizes, types[op.args[0].id].sizes[1])
    if not all(isinstance(size, int) for size in sizes) or min(sizes) < LEAST_SIZE:
        return False
    rows, columns, inner = sizes
    return inner % ALIGN_ELEMS != 0 and rows * columns * inner >= LEAST_TERMS


class _Padding:
    """The graph under construction. `axis_of`: along which values are padded; `held`: what those
    are that are parts of padded memory."""

    def __init__(self, graph: Graph, types: Mapping[int, Type], odd: set[int]):
        self.graph, self.odd = graph, odd
        self.ops: list[Op] = []
        self.builder = Builder(
            "core", ops=self.ops, next_id=graph.next_id(), type_of=dict(types))
        # values whose strides others count on
        self.fixed = {
            *graph.outputs, *(v for _, v in graph.writes), *(i.id for i in graph.inputs),
            *(value for store in graph.stores for value in (store.value, store.state)),
            *(ref for op in graph.ops if op.name == "library" for ref in op.refs())}
        self.axes = dict.fromkeys(
            (arg.id, axis) for op in graph.ops if op.results and op.results[0] in odd
            for arg, axis in zip(op.args, (1, 0)))
        self.padded: dict[tuple[int, int], int] = {}
        self.held: dict[int, int] = {}

    def run(self) -> Graph:
        for given in self.graph.inputs:
            self._pad(given.id)
        for op in self.graph.ops:
            if op.results and op.results[0] in self.odd:
                a, b = op.args
                args = (Ref(self.padded[a.id, 1]), Ref(self.padded[b.id, 0]))
                op = replace(op, args=args)
            elif op.name != "library":
                op = replace(op, args=tuple(Ref(self.held.get(a.id, a.id)) for a in op.args))
            self.builder.append(op)
            for result in op.results:
                self._pad(result)
        return replace(self.graph, ops=tuple(self.ops))

    def _pad(self, value: int) -> None:
        """Appends `value` with zeros behind, as odd products take it."""
        for axis in (1, 0):
            if (value, axis) not in self.axes:
                continue
            type = self.builder.type_of[value]
            end = -type.sizes[axis] % ALIGN_ELEMS
            sizes = tuple(size + end * (k == axis) for k, size in enumerate(type.sizes))
            is_turned = type.strides[0] == 1 and type.strides[1] != 1
            strides = (1, sizes[0]) if is_turned else None
            long = tensor(type.dtype, sizes, strides, device=type.device)
            high = (end, 0) if axis == 0 else (0, end)
            made = self.builder.add("pad", [value], long, low=(0, 0), high=high, value=0.0)
            self.padded[value, axis] = made
            if value not in self.fixed and value not in self.held:
                self.held[value] = self.builder.fresh()
                self.builder.append(_slice(made, self.held[value], long, type, axis))


def _slice(value: int, result: int, long: TensorType, type: TensorType, axis: int) -> Op:
    """The part of `value`, of type `long`, that a tensor of `type` was."""
    return Op(
        "slice", (Ref(value),), (result,), (replace(long, sizes=type.sizes),),
        (("axis", axis), ("start", 0), ("step", 1)))
