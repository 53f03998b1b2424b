"""Decompose: a functional graph of ATen ops becomes a graph of core ops.

    %2: bf16[8, 128] = aten.silu.default(%0)
      ->
    %2: f32[8, 128] = cast(%0, dtype='float32')
    %3: f32[8, 128] = sigmoid(%2)
    %4: f32[8, 128] = mul(%2, %3)
    %5: bf16[8, 128] = cast(%4, dtype='bfloat16')

Requires level aten without writes (`functionalize`). Guarantees level core; results have exactly
the recorded dtypes, sizes and strides. One row an overload (`decompositions`); what has no row, or
what its row declines, becomes `library`. Complex, quantised, sparse and float8 values are the
library's. A number that is an input becomes a 0-d tensor; rows get it as a symbol (`NUMBER_ROWS`
can), the library as an `Item` of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from preheat.base.errors import InternalError, Unsupported
from preheat.bridge.ops import arguments, schema
from preheat.ir.graph import Arg, Builder, Graph, Item, Op, Ref
from preheat.ir.scalar import Scalar, symbol
from preheat.ir.types import NUMBER_DTYPES, ScalarType, TensorType, tensor
from preheat.transform.decompositions import NUMBER_ROWS, ROWS
from preheat.transform.lowering import SUPPORTED, Declined, Lowering, Value, values_of

# The core value of each recorded one; of a number that is an input, a symbol that names its value.
Known: TypeAlias = dict[int, int | Scalar]


def decompose(graph: Graph, rows: Mapping[str, Callable] = ROWS) -> Graph:
    """`graph` at level core. Raises Unsupported for an op with regions."""
    builder = Builder("core", next_id=graph.next_id())
    known: Known = {}
    for input in graph.inputs:
        known[input.id] = input.id
        if isinstance(input.type, ScalarType):
            known[input.id] = symbol(f"%{input.id}", input.type.type)
            input = replace(input, type=tensor(NUMBER_DTYPES[input.type.type], ()))
        builder.inputs.append(input)
        builder.type_of[input.id] = input.type
    read = frozenset((
        *graph.outputs, *(value for pair in graph.writes for value in pair),
        *(ref for op in graph.ops for ref in op.refs())))
    for op in graph.ops:
        if op.regions:
            raise Unsupported("higher_order_op", op.name)
        _lower(builder, op, known, rows, read)
    return Graph(
        "core", tuple(builder.inputs), tuple(builder.ops), tuple(known[o] for o in graph.outputs),
        tuple((target, known[value]) for target, value in graph.writes), graph.output_aliases,
    )


def _lower(
    builder: Builder, op: Op, known: Known, rows: Mapping[str, Callable], read: frozenset[int]
) -> None:
    """Appends the core ops for `op`; notes in `known` which value each of its results became."""
    row = rows.get(op.name)
    length = len(builder.ops)
    if row is not None and _is_supported(builder, op, known):
        lowering = Lowering(builder, op, read)
        named = {key: values_of(lowering, arg, known) for key, arg in arguments(op).items()}
        try:
            made = row(lowering, **named)
        except Declined:
            del builder.ops[length:]
        except Unsupported as why:
            if why.reason != "symbolic":
                raise
            del builder.ops[length:]
        else:
            _bind(builder, lowering, op, made, known, length)
            return
    _keep_whole(builder, op, known)


def _is_supported(builder: Builder, op: Op, known: Known) -> bool:
    """All tensors dense, of dtypes that core ops have, on one device (0-d CPU tensors apart).

    Numbers that are inputs only where the row is known to take them.
    """
    values = [known[ref] for ref in op.refs()]
    if op.name not in NUMBER_ROWS and any(isinstance(value, Scalar) for value in values):
        return False
    operands = [builder.type_of[value] for value in values if not isinstance(value, Scalar)]
    types = [t for t in (*operands, *op.types) if isinstance(t, TensorType)]
    same_kind = all(isinstance(t, TensorType) for t in operands)
    return (
        same_kind
        and all(t.dtype in SUPPORTED for t in types)
        and len({t.device for t in types if t.rank or t.device != "cpu"}) <= 1
    )


def _bind(builder: Builder, c: Lowering, op: Op, made: object, known: Known, first: int) -> None:
    """Gives each result of `op` the value made for it, by the ops from `first` on, with exactly the recorded type."""
    results = made if isinstance(made, tuple) else (made,)
    if len(results) != len(op.results):
        raise InternalError(
            f"the row of {op.name} gave {len(results)} results, the op has {len(op.results)}"
        )
    for result, type, value in zip(op.results, op.types, results):
        if value is None or result == -1:
            continue
        if (value.dtype, value.sizes) != (type.dtype, type.sizes):
            raise InternalError(f"the row of {op.name} gave {value.type}, recorded is {type}")
        known[result] = _with_strides(builder, c, value, type, first).id


def _with_strides(builder: Builder, c: Lowering, value: Value, type: TensorType, first: int) -> Value:
    """`value` with the recorded strides: its op retyped if it is the last of those from `first` on, else a
    copy: who read it before goes on to see what it was."""
    if value.type.strides == type.strides:
        return value
    last = builder.ops[-1] if len(builder.ops) > first else None
    if last is not None and last.results == (value.id,) and last.name != "library":
        builder.ops[-1] = Op(last.name, last.args, last.results, (type,), last.attrs)
        builder.type_of[value.id] = type
        return value
    return c.copy(value, type.strides)


def _is_integer_index(builder: Builder, op: Op, known: Known) -> bool:
    """Whether `op` is indexing by integers: its result's size is data only for masks."""
    if op.name != "aten.index.Tensor":
        return False
    indices = [builder.type_of[known[ref]].dtype for ref in op.refs()][1:]
    return "bool" not in indices and "uint8" not in indices


def _keep_whole(builder: Builder, op: Op, known: Known) -> None:
    """`op` as a `library` op, with values of its own."""
    if schema(op.name).is_data_dependent and not _is_integer_index(builder, op, known):
        raise Unsupported("data_dependent_shape", op.name)
    results = tuple(-1 if r == -1 else builder.fresh() for r in op.results)
    known.update({old: new for old, new in zip(op.results, results) if old != -1})

    def renamed(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(renamed, arg))
        if not isinstance(arg, (Ref, Item)):
            return arg
        value = known[arg.id]
        return Item(arg.id) if isinstance(value, Scalar) else type(arg)(value)

    args = tuple(renamed(a) for a in op.args)
    attrs = (("op", op.name), *((key, renamed(a)) for key, a in op.attrs))
    builder.append(Op("library", args, results, op.types, attrs))
