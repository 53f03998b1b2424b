"""Verify: what must hold of a noun between passes. Raises InternalError that names op and rule.

    verify(graph)    every value is defined once, before its first use; core ops have the arity and
                     attrs of their row; elementwise operands have the result's sizes and one dtype;
                     movement, reductions, products and gathers have the sizes their row says;
                     writes go to inputs, once each, with the input's sizes and dtype
    verify(kernel)   SSA order over all stages, axes known, parameters in range
    verify(plan)     buffers, kernels and calls refer to what exists

Source: the conventions in `ir/ops.py` and `ir/loop.py`.
"""

from collections.abc import Callable

from preheat.base.errors import InternalError
from preheat.ir.graph import Graph, Op, Ref
from preheat.ir.loop import WORDS, Kernel, LoopOp
from preheat.ir.ops import COMPARISONS, CORE
from preheat.ir.plan import KernelCall, LibraryCall, Plan, ProductCall
from preheat.ir.scalar import product
from preheat.ir.types import TensorType, Type


def verify(noun: Graph | Kernel | Plan) -> None:
    """Returns if `noun` is well formed; raises InternalError naming the op and the rule if not."""
    if isinstance(noun, Graph):
        _verify_graph(noun)
    elif isinstance(noun, Kernel):
        _verify_kernel(noun)
    else:
        _verify_plan(noun)


def _require(holds: bool, where: object, rule: str) -> None:
    if not holds:
        raise InternalError(f"{where}: {rule}")


# ---------------------------------------------------------------------------- graphs
def _verify_graph(graph: Graph) -> None:
    types: dict[int, Type] = {}
    for input in graph.inputs:
        _require(input.id not in types, f"input %{input.id}", "defined twice")
        types[input.id] = input.type
    for position, op in enumerate(graph.ops):
        where = f"op {position} {op.name} -> {', '.join(f'%{r}' for r in op.results)}"
        for ref in op.refs():
            _require(ref in types, where, f"reads %{ref} before it is defined")
        _require(len(op.results) == len(op.types), where, "one type a result")
        if graph.level == "core":
            _verify_core_op(op, types, where)
        for result, type in zip(op.results, op.types):
            if graph.level == "core":
                _require(result not in types or result == -1, where, f"%{result} is defined twice")
            types.setdefault(result, type)
    _verify_ends(graph, types)


def _verify_ends(graph: Graph, types: dict[int, Type]) -> None:
    for output in graph.outputs:
        _require(output in types, "return", f"%{output} is not defined")
    inputs = {i.id for i in graph.inputs}
    targets = [target for target, _ in graph.writes]
    _require(len(set(targets)) == len(targets), "writes", "an input is written once")
    for target, value in graph.writes:
        where = f"write %{target} <- %{value}"
        _require(target in inputs and value in types, where, "from a value to an input")
        a, b = types[target], types[value]
        _require((a.dtype, a.sizes) == (b.dtype, b.sizes), where, f"{a} takes {b}")
    _require(set(graph.in_place) <= set(targets), "in place", "only written inputs")
    for store in graph.stores:
        where = f"store %{store.target} <- %{store.value}"
        _require(
            store.target in graph.in_place and store.value in types,
            where,
            "to an input written in place",
        )
        _require(store.state in types and store.value in types, where, "values are defined")
        _require(len(store.strides) == types[store.value].rank, where, "one stride an axis")
    aliases = graph.output_aliases
    _require(len(aliases) in (0, len(graph.outputs)), "return", "one alias an output")
    for place, alias in enumerate(aliases):
        where = f"output {place}"
        if alias.kind == "input":
            _require(0 <= alias.base < len(graph.inputs), where, "aliases an input that exists")
        elif alias.kind == "output":
            base = aliases[alias.base] if 0 <= alias.base < len(graph.outputs) else alias
            is_known = base.kind == "fresh" or base.is_detached and not alias.is_detached
            _require(is_known, where, "aliases a fresh or detached output")
        else:
            _require(alias.kind == "fresh", where, f"unknown kind {alias.kind!r}")


OPTIONAL = frozenset(("wrap",))  # attrs that are False when absent


def _verify_core_op(op: Op, types: dict[int, Type], where: str) -> None:
    spec = CORE.get(op.name)
    _require(spec is not None, where, "not a row of CORE")
    names = {name for name, _ in op.attrs}
    if op.name == "library":
        _require("op" in names, where, "names its overload in attr op")
        return
    _require(all(isinstance(a, Ref) for a in op.args), where, "arguments are values only")
    _require(
        spec.arity in (-1, len(op.args)), where, f"takes {spec.arity} operands, got {len(op.args)}"
    )
    required = set(spec.attrs) - OPTIONAL
    _require(
        required <= names <= set(spec.attrs), where, f"attrs {sorted(names)}, row has {spec.attrs}"
    )
    _require(len(op.results) == 1, where, "has one result")
    operands = tuple(types[a.id] for a in op.args)
    _require(
        all(isinstance(t, TensorType) for t in (*operands, op.type)),
        where,
        "takes and gives tensors",
    )
    _require(len(op.type.strides) == op.type.rank, where, "one stride an axis")
    _KINDS[spec.kind](op, operands, where)


def _elementwise(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    for operand in operands:
        _require(
            operand.sizes == op.type.sizes,
            where,
            f"operand sizes {operand.sizes} against {op.type.sizes}",
        )
    if op.name == "where":
        _require(operands[0].dtype == "bool", where, "first operand is bool")
        operands = operands[1:]
    _require(len({t.dtype for t in operands}) == 1, where, "operands of one dtype")
    if op.name in ("cast", "bitcast"):
        _require(op.attr("dtype") == op.type.dtype, where, "attr dtype is the result's")
    elif op.name in COMPARISONS:
        _require(op.type.dtype == "bool", where, "yields bool")
    else:
        _require(
            op.type.dtype == operands[0].dtype,
            where,
            f"{operands[0].dtype} to {op.type.dtype} needs a cast",
        )


def _creation(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    if op.name == "iota":
        _require(0 <= op.attr("axis") < op.type.rank, where, "axis in range")
    if op.name == "uniform":
        (seed,) = operands
        _require((seed.dtype, seed.rank) == ("int64", 0), where, "the seed is a 0-d int64")
        _require(op.type.dtype == "float32", where, "yields float32")


def _reduce(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    (x,) = operands
    axes = op.attr("axes") if op.name not in ("argmax", "argmin") else (op.attr("axis"),)
    _require(
        all(0 <= a < x.rank for a in axes) and len(set(axes)) == len(axes),
        where,
        f"axes {axes} of {x}",
    )
    if op.attr("keepdim"):
        sizes = tuple(1 if i in axes else s for i, s in enumerate(x.sizes))
    else:
        sizes = tuple(s for i, s in enumerate(x.sizes) if i not in axes)
    _require(op.type.sizes == sizes, where, f"{x} over {axes} gives {sizes}")
    if op.name in ("argmax", "argmin"):
        _require(op.type.dtype == "int64", where, "yields int64")
    elif op.name in ("any", "all"):
        _require(op.type.dtype == "bool", where, "yields bool")
    elif op.name in ("max", "min"):
        _require(op.type.dtype == x.dtype, where, "keeps the dtype")


def _movement(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    _require(bool(operands), where, "has an operand")
    _require({t.dtype for t in operands} == {op.type.dtype}, where, "keeps the dtype")
    expected = _MOVED[op.name](op, *operands)
    _require(
        expected is None or expected == op.type.sizes,
        where,
        f"sizes {op.type.sizes}, expected {expected}",
    )


def _moved_reshape(op: Op, x: TensorType):
    return op.type.sizes if product(op.type.sizes) == x.elems else ("as many elements",)


def _moved_permute(op: Op, x: TensorType):
    axes = op.attr("axes")
    return (
        tuple(x.sizes[a] for a in axes)
        if sorted(axes) == list(range(x.rank))
        else ("a permutation",)
    )


def _moved_expand(op: Op, x: TensorType):
    lead = op.type.rank - x.rank
    fits = lead >= 0 and all(a in (1, b) for a, b in zip(x.sizes, op.type.sizes[lead:]))
    return op.type.sizes if fits else (f"an expansion of {x}",)


def _moved_slice(op: Op, x: TensorType):
    axis, start, step = op.attr("axis"), op.attr("start"), op.attr("step")
    size = op.type.sizes[axis]
    known = all(isinstance(v, int) for v in (start, step, size, x.sizes[axis]))
    if (
        known
        and size
        and not (0 <= start and step > 0 and start + (size - 1) * step < x.sizes[axis])
    ):
        return (f"a slice inside {x}",)
    return (*x.sizes[:axis], size, *x.sizes[axis + 1 :])


def _moved_window(op: Op, x: TensorType):
    axis, (*_, taps) = op.attr("axis"), op.type.sizes
    last = (op.type.sizes[axis] - 1) * op.attr("step") + (taps - 1) * op.attr("dilation")
    if not last < x.sizes[axis]:
        return (f"windows inside {x}",)
    return (*x.sizes[:axis], op.type.sizes[axis], *x.sizes[axis + 1 :], taps)


def _moved_pad(op: Op, x: TensorType):
    return tuple(l + s + h for l, s, h in zip(op.attr("low"), x.sizes, op.attr("high")))


def _moved_cat(op: Op, *xs: TensorType):
    axis, total = op.attr("axis"), 0
    for x in xs:
        if x.sizes[:axis] + x.sizes[axis + 1 :] != xs[0].sizes[:axis] + xs[0].sizes[axis + 1 :]:
            return ("operands equal off the axis",)
        total = total + x.sizes[axis]
    return (*xs[0].sizes[:axis], total, *xs[0].sizes[axis + 1 :])


def _moved_place(op: Op, x: TensorType, part: TensorType):
    axis = op.attr("axis")
    fits = part.sizes[:axis] + part.sizes[axis + 1 :] == x.sizes[:axis] + x.sizes[axis + 1 :]
    return x.sizes if fits else ("a part equal off the axis",)


_MOVED: dict[str, Callable] = {
    "reshape": _moved_reshape, "permute": _moved_permute, "flip": lambda op, x: x.sizes,
    "expand": _moved_expand, "slice": _moved_slice, "pad": _moved_pad, "cat": _moved_cat,
    "place": _moved_place, "window": _moved_window,
}


def _gather(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    x, *indices = operands
    _require(op.type.dtype == x.dtype, where, "keeps the dtype")
    _require(
        all(t.dtype in ("int64", "int32") for t in indices), where, "indices are int64 or int32"
    )
    if op.name == "take":
        axis = op.attr("axis")
        expected = (*x.sizes[:axis], *indices[0].sizes, *x.sizes[axis + 1 :])
        _require(op.type.sizes == expected, where, f"sizes {op.type.sizes}, expected {expected}")
    elif op.name == "gather":
        _require(op.type.sizes == indices[0].sizes, where, "sizes of the index")
    else:
        _require(len(op.attr("axes")) == len(indices), where, "one index an axis")


def _product(op: Op, operands: tuple[TensorType, ...], where: str) -> None:
    a, b = operands
    _require(a.dtype == b.dtype == op.type.dtype, where, "one dtype")
    _require(a.rank == b.rank >= 2 and a.sizes[:-2] == b.sizes[:-2], where, "equal batch axes")
    _require(a.sizes[-1] == b.sizes[-2], where, f"{a} @ {b}")
    expected = (*a.sizes[:-1], b.sizes[-1])
    _require(op.type.sizes == expected, where, f"sizes {op.type.sizes}, expected {expected}")


_KINDS: dict[str, Callable] = {
    "elementwise": _elementwise, "creation": _creation, "reduce": _reduce, "movement": _movement,
    "gather": _gather, "product": _product,
}


# ---------------------------------------------------------------------------- kernels
def _verify_kernel(kernel: Kernel) -> None:
    outer = {axis.name for axis in kernel.axes}
    _require(len(outer) == len(kernel.axes), kernel.name, "axis names differ")
    _require(0 <= kernel.parallel <= len(kernel.axes), kernel.name, "parallel axes exist")
    _require(kernel.lane is None or kernel.lane in outer, kernel.name, "the lane is an outer axis")
    words = [place for place, param in enumerate(kernel.params) if param.name == WORDS]
    _require(bool(words) == (kernel.shared > 0) and len(words) <= 1, kernel.name, "shared rows have words")
    _require(not words or kernel.lane is None, kernel.name, "shared rows have no lane")
    _require(bool(words) or not kernel.is_behind, kernel.name, "rows stored behind are shared")
    carried: set[int] = set()
    defined: set[int] = set()
    for number, stage in enumerate(kernel.stages):
        axes = outer | {axis.name for axis in stage.axes}
        local: set[int] = set()
        for op in stage.body:
            where = f"{kernel.name} stage {number} v{op.id} {op.op}"
            _verify_loop_op(op, kernel, axes, carried | local, where)
            if op.id >= 0:
                _require(op.id not in defined, where, "defined twice")
                defined.add(op.id)
            if op.op == "reduce":
                carried.add(op.id)  # complete only after the stage
            else:
                local.add(op.id)
        carried |= {op.id for op in stage.body if op.keep or (not stage.axes and op.id >= 0)}


def _verify_loop_op(
    op: LoopOp, kernel: Kernel, axes: set[str], known: set[int], where: str
) -> None:
    reads = (*op.args, *(() if op.mask is None else (op.mask,)))
    for value in reads:
        _require(value in known, where, f"reads v{value} before it is defined")
    if op.op in ("load", "store"):
        _require(0 <= op.param < len(kernel.params), where, "parameter exists")
        _require(kernel.params[op.param].name != WORDS, where, "nothing else uses the words")
        role = kernel.params[op.param].role
        _require(
            role != ("out" if op.op == "load" else "in"),
            where,
            f"{op.op} of a parameter that is {role}",
        )
    if op.index is not None:
        for term, _ in op.index.terms:
            _require(
                term in (known if isinstance(term, int) else axes), where, f"index term {term}"
            )
    if op.op == "axis":
        _require(op.axis in axes, where, f"no axis {op.axis}")


# ---------------------------------------------------------------------------- plans
def _verify_plan(plan: Plan) -> None:
    count = len(plan.buffers)
    for number, buffer in enumerate(plan.buffers):
        where = f"buffer {number} ({buffer.kind})"
        if buffer.kind == "view":
            _require(0 <= buffer.base < number, where, "is a view of an earlier buffer")
        if buffer.kind == "input":
            _require(0 <= buffer.index < len(plan.inputs), where, "names an input")
        if buffer.kind == "output":
            _require(0 <= buffer.index < len(plan.outputs), where, "names an output")
    for position, call in enumerate(plan.calls):
        where = f"call {position}"
        if isinstance(call, KernelCall):
            _require(0 <= call.kernel < len(plan.kernels), where, "names a kernel")
            kernel = plan.kernels[call.kernel]
            _require(len(kernel.params) == len(call.buffers), where, "one buffer a parameter")
            _require(_is_walked(kernel, call), where, "walks what its kernel is made for")
            used = call.buffers
        elif isinstance(call, ProductCall):
            used = (call.a, call.b, call.out)
        else:
            _require(isinstance(call, LibraryCall), where, "is a kernel, product or library call")
            used = tuple(r for r in call.results if r != -1)
        _require(all(0 <= b < count for b in used), where, "buffers exist")
    for kernel in plan.kernels:
        _verify_kernel(kernel)


def _is_walked(kernel: Kernel, call: KernelCall) -> bool:
    """Whether the range of `call` is that of the parallel axes, where both are numbers."""
    extents = [axis.extent for axis in kernel.axes[: kernel.parallel]]
    are_known = all(type(extent) is int for extent in (call.extent, *extents))
    return not are_known or product(extents) == call.extent
