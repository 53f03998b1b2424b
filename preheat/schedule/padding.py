"""16-bit products of sizes that a GPU's library has slow kernels for: of sizes that it has fast ones for.

    %3: bf16[4096, 50257] = matmul(%0: bf16[4096, 768], %2: bf16[768, 50257])
      ->
    %4: bf16[768, 50264] = pad(%2, high=(0, 7))
    %5: bf16[4096, 50264] = matmul(%0, %4)
    %3: bf16[4096, 50257] = slice(%5, axis=1)              the same memory, read by strides

The library's kernels load 16 bytes at once: rows of its operands must begin at a multiple of that,
and the columns of the result and the terms of each sum must be such a multiple themselves. Else it takes
kernels that are several times slower (on an H200 the product above takes 3.4 ms). Zeros are added to
the sum, and columns that nobody reads. A computed value that is padded lies in padded memory for
all who read it.

Requires and gives level core. Guarantees: values are what they were; a product with few operations
is left as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref
from preheat.ir.plan import Target
from preheat.ir.scalar import Dim
from preheat.ir.types import TensorType, Type, tensor

EACH = 8  # elements of 16 bits
LEAST_SIZE = 256  # of a product that is worth copies of its operands
LEAST_TERMS = 1 << 31
HALVES = ("bfloat16", "float16")


Ends = tuple[int, int]  # zeros after the last row and the last column


def pad_products(graph: Graph, target: Target) -> Graph:
    """`graph` with the large products of sizes off the library's alignment padded."""
    if not target.is_gpu:
        return graph
    types = graph.types()
    wanted = {op.result: _ends(op, types) for op in graph.ops if op.name == "matmul"}
    wanted = {value: ends for value, ends in wanted.items() if ends is not None}
    return _Padding(graph, types, wanted).run() if wanted else graph


def _ends(op: Op, types: Mapping[int, Type]) -> tuple[Ends, Ends] | None:
    """What is added to the operands of the product `op`; None where it is not worth it."""
    if op.type.dtype not in HALVES or op.type.rank != 2:
        return None
    (rows, columns), inner = op.type.sizes, types[op.args[0].id].sizes[1]
    if not all(isinstance(size, int) for size in (rows, columns, inner)):
        return None
    if min(rows, columns, inner) < LEAST_SIZE or rows * columns * inner < LEAST_TERMS:
        return None
    right, deep = -columns % EACH, -inner % EACH
    return ((0, deep), (deep, right)) if right or deep else None


class _Padding:
    """The graph under construction. `pads`: what each value is padded with, `held`: its values that
    are slices of padded memory."""

    def __init__(
        self, graph: Graph, types: Mapping[int, Type], wanted: Mapping[int, tuple[Ends, Ends]],
    ):
        self.graph, self.wanted = graph, wanted
        self.ops: list[Op] = []
        self.builder = Builder(
            "core", ops=self.ops, next_id=graph.next_id(), type_of=dict(types))
        # values whose strides others count on
        self.fixed = {
            *graph.outputs, *(v for _, v in graph.writes), *(i.id for i in graph.inputs),
            *(value for store in graph.stores for value in (store.value, store.state)),
            *(ref for op in graph.ops if op.name == "library" for ref in op.refs())}
        self.pads: dict[int, list[Ends]] = {}
        for op in graph.ops:
            for arg, ends in zip(op.args, wanted.get(op.results[0], ()) if op.results else ()):
                if any(ends) and ends not in self.pads.setdefault(arg.id, []):
                    self.pads[arg.id].append(ends)
        self.padded: dict[tuple[int, Ends], int] = {}
        self.held: dict[int, int] = {}

    def run(self) -> Graph:
        for given in self.graph.inputs:
            self._pad(given.id)
        for op in self.graph.ops:
            if op.results and op.results[0] in self.wanted:
                self._product(op, self.wanted[op.results[0]])
            elif op.name == "library":
                self.builder.append(op)
            else:
                self.builder.append(replace(op, args=tuple(map(self._held, op.args))))
            for result in op.results:
                self._pad(result)
        return replace(self.graph, ops=tuple(self.ops))

    def _product(self, op: Op, ends: tuple[Ends, Ends]) -> None:
        args = tuple(
            Ref(self.padded[arg.id, end]) if any(end) else self._held(arg)
            for arg, end in zip(op.args, ends))
        rows, columns = op.type.sizes
        if ends[1][1] == 0:
            self.builder.append(replace(op, args=args))
            return
        type = tensor(op.type.dtype, (rows, columns + ends[1][1]), device=op.type.device)
        value = self.builder.add("matmul", [arg.id for arg in args], type)
        if op.result not in self.fixed:
            self.builder.append(_slice(value, op.result, type, (rows, columns)))
            return
        part = self.builder.fresh()
        self.builder.append(_slice(value, part, type, (rows, columns)))
        self.builder.append(
            Op("cast", (Ref(part),), op.results, op.types, (("dtype", op.type.dtype),)))

    def _held(self, arg: Ref) -> Ref:
        return Ref(self.held.get(arg.id, arg.id))

    def _pad(self, value: int) -> None:
        """Appends `value` with zeros behind, as products take it."""
        for ends in self.pads.get(value, ()):
            type = self.builder.type_of[value]
            rows, columns = (size + end for size, end in zip(type.sizes, ends))
            is_turned = type.strides[0] == 1 and type.strides[1] != 1
            long = tensor(
                type.dtype, (rows, columns), (1, rows) if is_turned else None, device=type.device)
            made = self.builder.add("pad", [value], long, low=(0, 0), high=ends, value=0.0)
            self.padded[value, ends] = made
            if value not in self.fixed and value not in self.held and 0 in ends:
                self.held[value] = self.builder.fresh()
                self.builder.append(_slice(made, self.held[value], long, type.sizes))


def _slice(value: int, result: int, type: TensorType, sizes: tuple[Dim, ...]) -> Op:
    """The first rows and columns of `value`, which is of `type`."""
    axis = next(k for k in (0, 1) if type.sizes[k] != sizes[k])
    return Op(
        "slice", (Ref(value),), (result,), (replace(type, sizes=sizes),),
        (("axis", axis), ("start", 0), ("step", 1)))
