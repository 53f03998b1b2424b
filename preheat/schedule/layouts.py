"""Convolutions of a GPU in the layout that its tensor cores take: channels last, and all between them.

    %2: f16[8, 64, 56, 56] = library(%0, %1, ..., op='aten.convolution.default'); %3 = relu(%2)
      ->
    %4: f16[8, 64, 56, 56]{200704, 1, 3584, 64} = cast(%0)      joins the kernel that makes %0
    %5: f16[64, 64, 3, 3]{576, 1, 192, 64} = cast(%1)
    %2: f16[8, 64, 56, 56]{200704, 1, 3584, 64} = library(%4, %5, ...)
    %3: f16[8, 64, 56, 56]{200704, 1, 3584, 64} = relu(%2)      the next one takes it as it is

For 16-bit floats the library itself computes in this layout: given another one it turns operands and
result around on each call. What is elementwise, pooling or joining takes the layout of its operands, and so do views,
so that a network turns its input and its last result only: tokens that are the pixels of an image have
their channels next to each other. In training that is decided for both halves at once: what
the forward keeps, and gradients, lie so too. Weights are turned on each call: their
values may change without a trace that could be checked (through `.data`), and it moves far fewer
bytes than activations do.

Left as they are: grouped convolutions (torch.compile's benchmarks have them 1.36 times slower), and
float32, where the layout decides whether the library rounds operands to tf32.

Requires level core. Guarantees: results of the graph, what is written to its inputs, and operands of
other library calls keep their strides.
Source: cudnn_conv_suggest_memory_format (aten/src/ATen/native/ConvUtils.h): one operand with
channels last gives such a result.
"""

from dataclasses import replace

from preheat.ir.graph import Builder, Graph, Op, Ref, map_refs
from preheat.ir.ops import ELEMENTWISE
from preheat.ir.plan import Target
from preheat.ir.scalar import Scalar
from preheat.ir.types import HALVES, TensorType, Type
from preheat.schedule.biases import CONVOLUTION, biases_apart
from preheat.schedule.views import view_of

MOST_ELEMS = 1 << 31  # of a tensor: beyond, the library may go another way
# Library calls that give their results in the layout of their operand.
KEEPING = frozenset((
    "aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default", "aten.upsample_nearest2d.default",
    "aten.upsample_bilinear2d.default"))
# Products: their results lie one way whatever the strides of their operands.
PRODUCTS = frozenset((
    "aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default",
    "aten._addmm_activation.default"))
POOLING_BACKWARD = "aten.max_pool2d_with_indices_backward.default"  # in that of what was pooled, its second operand
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
JOINING = ELEMENTWISE | {"cat", "pad"}
VIEWS = frozenset(("reshape", "permute", "expand", "slice"))


def channels_last(graph: Graph, target: Target) -> Graph:
    """`graph` with its convolutions of 16-bit floats, and what is between them, channels last."""
    types = graph.types()
    if not target.is_gpu or not any(_is_chosen(op, types) for op in graph.ops):
        return graph
    return _Layouts(graph).graph()


def laid_out(graph: Graph, target: Target) -> Graph:
    """`graph` with convolutions as the library and kernels of a GPU take them best: biases apart, and channels
    last. Of what is so already nothing changes."""
    return channels_last(biases_apart(graph, target), target)


def channels_last_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that torch gives [N, C, H, W] in its memory format `channels_last`."""
    _, channels, height, width = sizes
    return height * width * channels, 1, width * channels, channels


def is_channels_last(type: TensorType) -> bool:
    """`type`: [N, C, H, W] lies so in memory; axes of one element may have any stride."""
    wanted = channels_last_strides(type.sizes) if type.rank == 4 else ()
    return bool(wanted) and all(
        a == b for n, a, b in zip(type.sizes, type.strides, wanted) if n != 1)


def _is_image(type: TensorType) -> bool:
    """Channels are neighbours in memory, whatever part of an image it is."""
    return type.rank == 4 and type.strides[1] == 1


def _fills_memory(type: TensorType) -> bool:
    """Whether `type`, of known sizes, has elements, and these fill their memory."""
    is_known = not any(isinstance(n, Scalar) for n in (*type.sizes, *type.strides))
    return is_known and type.elems > 0 and type.is_dense


def _is_chosen(op: Op, types: dict[int, TensorType]) -> bool:
    """A convolution of 16-bit floats, not grouped, whose layout the strides of its input tell."""
    parts = _parts(op, types)
    if parts is None:
        return False
    x, weight, made, is_transposed, groups = parts
    known = (*x.sizes, *weight.sizes, *made.sizes)
    if x.rank != 4 or made.dtype not in HALVES or {x.dtype, weight.dtype} != {made.dtype}:
        return False
    if any(isinstance(n, Scalar) for n in known) or is_transposed or groups != 1:
        return False
    is_told = x.sizes[1] > 1 and x.sizes[2] * x.sizes[3] > 1
    return is_told and all(0 < t.elems < MOST_ELEMS for t in (x, weight, made))


def _parts(op: Op, types: dict[int, TensorType]) -> tuple[TensorType, TensorType, TensorType, bool, int] | None:
    """Operand, weight and result of a convolution, or of the one that `op` is the backward of; whether it is
    transposed, and its groups."""
    name = op.attr("op") if op.name == "library" else ""
    if name == CONVOLUTION and len(op.args) == 9:
        return types[op.args[0].id], types[op.args[1].id], op.type, op.args[6], op.args[8]
    if name == CONVOLUTION_BACKWARD and len(op.args) == 11:
        made, x, weight = (types[arg.id] for arg in op.args[:3])
        return x, weight, made, op.args[7], op.args[9]
    return None


class _Layouts:
    """The graph under construction. `given`: the recorded type of each value that has another now."""

    def __init__(self, graph: Graph):
        self.source, self.types = graph, graph.types()
        self.ops: list[Op] = []
        self.builder = Builder(
            "core", ops=self.ops, next_id=graph.next_id(), type_of=dict(self.types))
        stored = (value for s in graph.stores for value in (s.state, s.value))
        self.kept = {*graph.outputs, *(v for pair in graph.writes for v in pair), *stored}
        self.given: dict[int, TensorType] = {}
        self.copies: dict[tuple[int, tuple[int, ...]], int] = {}

    def graph(self) -> Graph:
        for op in self.source.ops:
            if _is_chosen(op, self.types):
                self._convolution(op)
            elif op.name == "library" and op.attr("op") in KEEPING and self._may_follow(op):
                self._retyped(op)
            elif op.name == "library" and op.attr("op") == POOLING_BACKWARD and op.args[1].id in self.given:
                self._made_last(op, op.args)
            elif op.name in ELEMENTWISE and self._may_lie_as_operand(op):
                self._as_operand(op)
            elif op.name in JOINING and self._may_follow(op):
                self._retyped(op)
            elif op.name in VIEWS and op.args[0].id in self.given and op.result not in self.kept:
                self._viewed(op)
            else:
                is_exact = op.name == "library" and op.attr("op") not in PRODUCTS
                self.ops.append(self._with_recorded_operands(op) if is_exact else op)
        return replace(self.source, ops=tuple(self.ops))

    def _may_follow(self, op: Op) -> bool:
        """The results may lie in memory as an operand does that has been laid out anew."""
        types = [t for t in op.types if isinstance(t, TensorType)]
        if self.kept.intersection(op.results) or any(t.rank != 4 for t in types):
            return False
        return any(value in self.given and _is_image(self.builder.type_of[value]) for value in op.refs())

    def _may_lie_as_operand(self, op: Op) -> bool:
        """The result may lie in memory as the first operand that has been laid out anew, without gaps, does."""
        return op.result not in self.kept and self._leader(op) is not None

    def _leader(self, op: Op) -> int | None:
        known = (value for value in op.refs() if value in self.given)
        return next((v for v in known if _fills_memory(self.builder.type_of[v])), None)

    def _as_operand(self, op: Op) -> None:
        strides = self.builder.type_of[self._leader(op)].strides
        self._typed(op, (replace(op.type, strides=strides),))

    def _viewed(self, op: Op) -> None:
        """Views carry the strides that their operand gives them; what is none of it lies as it was recorded."""
        value = op.args[0].id
        view = view_of(op.result, {op.result: op}, {**self.builder.type_of}, lambda v: v == value)
        strides = op.type.strides if view is None else view.strides
        self._typed(op, (replace(op.type, strides=strides),))

    def _retyped(self, op: Op) -> None:
        self._typed(op, tuple(
            _turned(type) if isinstance(type, TensorType) else type for type in op.types))

    def _typed(self, op: Op, types: tuple[Type, ...]) -> None:
        self.ops.append(replace(op, types=types))
        for result, old, new in zip(op.results, op.types, types):
            if old != new and result != -1:
                self.given[result] = old
                self.builder.type_of[result] = new

    def _convolution(self, op: Op) -> None:
        count = 2 if op.attr("op") == CONVOLUTION else 3
        self._made_last(op, (*(Ref(self._laid(arg.id)) for arg in op.args[:count]), *op.args[count:]))

    def _made_last(self, op: Op, args: tuple) -> None:
        """`op` on `args`, which gives images with channels last; those that are to be kept are copied."""
        types, results, copies = [], [], []
        for result, type in zip(op.results, op.types):
            is_image = result != -1 and type.rank == 4
            turned = _turned(type) if is_image else type
            is_kept = is_image and result in self.kept and type != turned
            made = self.builder.fresh() if is_kept else result
            if is_kept:
                copies.append(Op("cast", (Ref(made),), (result,), (type,), (("dtype", type.dtype),)))
            types.append(turned)
            results.append(made)
        self._typed(replace(op, args=args, results=tuple(results)), tuple(types))
        for copy in copies:
            self.builder.append(copy)

    def _laid(self, value: int) -> int:
        """`value` with channels last."""
        type = self.builder.type_of[value]
        if is_channels_last(type):
            return value
        return self._copy(value, channels_last_strides(type.sizes))

    def _with_recorded_operands(self, op: Op) -> Op:
        """`op` on operands with the strides that eager's have."""
        def recorded(value: int) -> Ref:
            if value not in self.given:
                return Ref(value)
            return Ref(self._copy(value, self.given[value].strides))

        args = tuple(map_refs(arg, recorded) for arg in op.args)
        attrs = tuple((key, map_refs(arg, recorded)) for key, arg in op.attrs)
        return replace(op, args=args, attrs=attrs)

    def _copy(self, value: int, strides: tuple[int, ...]) -> int:
        if (value, strides) not in self.copies:
            type = replace(self.builder.type_of[value], strides=strides)
            self.copies[value, strides] = self.builder.add("cast", [value], type, dtype=type.dtype)
        return self.copies[value, strides]


def _turned(type: TensorType) -> TensorType:
    return replace(type, strides=channels_last_strides(type.sizes))
