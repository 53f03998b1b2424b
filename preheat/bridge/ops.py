"""ATen overloads by name: which torch function a name is, its parameters, and what it may do.

    "aten.add.Tensor"  ->  torch.ops.aten.add.Tensor
    arguments(Op("aten.sum.dim_IntList", (Ref(0), (1,)), ...))
                       ->  {"self": Ref(0), "dim": (1,), "keepdim": False, "dtype": None}

Everything above this file knows overloads only by name; the facts it gives out (`Schema`) are plain
data. `private` is the one door to torch names that are no contract: it answers None when absent.
Source: the operator schemas of torch (aten/src/ATen/native/README.md).
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from preheat.base.dataclass import dataclass
from preheat.base.errors import InternalError
from preheat.bridge.operators import register
from preheat.ir.graph import Arg, Graph, Item, Op, Ref, Token
from preheat.ir.scalar import Scalar, type_of
from preheat.ir.types import NoneType, ScalarType, TensorType, Type, tensor


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an overload. `is_written`: its memory changes. `alias`: its alias set."""

    name: str
    type: str
    default: Arg
    is_keyword_only: bool
    is_written: bool
    alias: str


@dataclass(frozen=True, slots=True)
class Schema:
    """An overload's facts. `is_random`: draws from a generator. `returns`: their alias sets."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: tuple[str, ...]
    is_mutable: bool
    is_random: bool
    is_data_dependent: bool

    @property
    def has_effect(self) -> bool:
        """Whether a second call, or none, would be noticed: it draws, or writes what its schema hides."""
        return self.is_random or self.name in HIDDEN_WRITES


# Overloads that write to arguments without saying so, and have no functional form: the flag with which
# they do, and the arguments.
_STATISTICS = "training", ("running_mean", "running_var")
HIDDEN_WRITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "aten.cudnn_batch_norm.default": _STATISTICS,
    "aten.miopen_batch_norm.default": _STATISTICS,
}
# Others: the functional form, which gives these arguments anew, and as above.
SILENT_WRITES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "aten.native_batch_norm.default": (
        "aten._native_batch_norm_legit_functional.default", *_STATISTICS),
}


@functools.lru_cache(maxsize=None)
def overload(name: str) -> Any:
    """The torch overload called `name`: "namespace.op.overload". Raises InternalError if absent."""
    try:
        space, op, variant = name.split(".")
        if space == "preheat":
            register(name)
        return getattr(getattr(getattr(torch.ops, space), op), variant)
    except (ValueError, AttributeError) as error:
        raise InternalError(f"no overload {name!r} in torch {torch.__version__}") from error


def exists(name: str) -> bool:
    """Whether torch has the overload `name`."""
    try:
        overload(name)
    except InternalError:
        return False
    return True


def name_of(function: Any) -> str:
    """The name of a torch overload; the inverse of `overload`."""
    return f"{function.namespace}.{function._opname}.{function._overloadname}"


@functools.lru_cache(maxsize=None)
def schema(name: str) -> Schema:
    """The facts of the overload `name`."""
    function = overload(name)
    raw = function._schema
    parameters = tuple(
        Parameter(
            a.name, str(a.type), encode(a.default_value) if a.has_default_value() else None,
            a.kwarg_only, bool(a.alias_info and a.alias_info.is_write), _alias_set(a.alias_info),
        )
        for a in raw.arguments
    )
    return Schema(
        name,
        parameters,
        tuple(_alias_set(r.alias_info) for r in raw.returns),
        raw.is_mutable,
        # attention's backwards have the tag as well, and are given the seed that the forward drew
        torch.Tag.nondeterministic_seeded in function.tags
        and all(parameter.name != "philox_seed" for parameter in parameters),
        torch.Tag.data_dependent_output in function.tags
        or torch.Tag.dynamic_output_shape in function.tags,
    )


@functools.lru_cache(maxsize=None)
def is_pointwise(name: str) -> bool:
    """Whether the overload `name` computes each element of its result from those at the same place."""
    return torch.Tag.pointwise in overload(name).tags


def arguments(op: Op) -> dict[str, Arg]:
    """The arguments of a level aten op (or `library` op) by parameter name, defaults filled in."""
    name = op.attr("op") if op.name == "library" else op.name
    defaults = _defaults(name)
    found = defaults | dict(zip(defaults, op.args))
    is_library = op.name == "library"
    found.update([pair for pair in op.attrs if pair[0] != "op"] if is_library else op.attrs)
    return found


@functools.lru_cache(maxsize=None)
def _defaults(name: str) -> dict[str, Arg]:
    """The default of each parameter of the overload `name`, in order."""
    return {parameter.name: parameter.default for parameter in schema(name).parameters}


@functools.lru_cache(maxsize=None)
def functional(name: str) -> str | None:
    """The overload that computes what `name` writes, without writing: add_.Tensor -> add.Tensor.

    One result for each written parameter. None when torch has no such overload.
    """
    space, op, variant = name.split(".")
    kept = [
        (p.name, p.type)
        for p in schema(name).parameters
        if not (p.is_written and p.is_keyword_only)
    ]
    candidates = [f"{space}.{op.removesuffix('_')}.{variant}"]
    packet = getattr(getattr(torch.ops, space), op.removesuffix("_"), None)
    if packet is not None:
        candidates += [f"{space}.{op.removesuffix('_')}.{v}" for v in packet.overloads()]
    for candidate in candidates:
        if exists(candidate) and not schema(candidate).is_mutable:
            if [(p.name, p.type) for p in schema(candidate).parameters] == kept:
                return candidate
    return None


def writes_unseen(op: Op) -> tuple[int, ...]:
    """The values that a level aten op writes to without saying so."""
    if op.name in HIDDEN_WRITES:
        switch, written = HIDDEN_WRITES[op.name]
    elif op.name in SILENT_WRITES:
        _, switch, written = SILENT_WRITES[op.name]
    else:
        return ()
    named = arguments(op)
    if not named[switch]:
        return ()
    return tuple(named[key].id for key in written if isinstance(named[key], Ref))


def unseen_inputs(graph: Graph) -> tuple[int, ...]:
    """The places of the inputs that a recorded graph writes to, and only unseen: in eager autograd's
    versions do not count such writes, so a backward that had saved the input is not refused."""
    roots = graph.roots()
    unseen = {roots.get(v, v) for op in graph.ops for v in writes_unseen(op)}
    unseen -= {roots.get(v, v) for op in graph.ops for v in op.writes}
    return tuple(place for place, given in enumerate(graph.inputs) if given.id in unseen)


def unseen_values(graph: Graph) -> frozenset[int]:
    """What a functional graph gives for such inputs."""
    forms = {form: written for form, _, written in SILENT_WRITES.values()}
    known = {given.id for given in graph.inputs}
    found: set[int] = set()
    for op in graph.ops:
        if op.name in forms:
            named, written = arguments(op), forms[op.name]
            found.update(
                result for key, result in zip(written, op.results[-len(written):])
                if named[key].id in known or named[key].id in found)
    return frozenset(found)


def _alias_set(info: Any) -> str:
    return "" if info is None else "|".join(sorted(info.before_set))


# ---------------------------------------------------------------------------- constants
_KINDS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
_CONSTANTS: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS.values()}
for _value in vars(torch).values():
    if type(_value) in _KINDS:
        _CONSTANTS[_KINDS[type(_value)]][str(_value).removeprefix("torch.")] = _value


def constant(token: Token) -> Any:
    """The torch object that `token` names."""
    if token.kind == "device":
        return torch.device(token.name)
    try:
        return _CONSTANTS[token.kind][token.name]
    except KeyError:
        raise InternalError(f"torch {torch.__version__} has no {token}") from None


def encode(value: Any) -> Arg:
    """A Python or torch constant as an argument of the IR. Raises TypeError for anything else."""
    if value is None or isinstance(
        value, (bool, int, float, complex, str, Token, Ref, Item, Scalar)
    ):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(encode(part) for part in value)
    if isinstance(value, torch.device):
        return Token("device", str(value))
    for kind, cls in (
        ("dtype", torch.dtype),
        ("layout", torch.layout),
        ("memory_format", torch.memory_format),
    ):
        if isinstance(value, cls):
            return Token(kind, str(value).removeprefix("torch."))
    raise TypeError(f"no argument of the IR: {type(value).__name__}")


def decode(arg: Arg, values: Any) -> Any:
    """`arg` as torch takes it, with each `Ref` and `Item` looked up in `values`."""
    if isinstance(arg, Ref):
        return values[arg.id]
    if isinstance(arg, Item):
        return values[arg.id].item()
    if isinstance(arg, Token):
        return constant(arg)
    if isinstance(arg, tuple):
        return [decode(part, values) for part in arg]
    return arg


def dtype(name: str) -> torch.dtype:
    """torch's dtype called `name`."""
    return constant(Token("dtype", name))


@functools.lru_cache(maxsize=None)
def draws(name: str, args: Sequence[Any], attrs: Sequence[tuple[str, Any]]) -> bool:
    """Whether a call of the overload `name` draws random numbers: attention without dropout does not."""
    if not schema(name).is_random:
        return False
    return arguments(Op(name, tuple(args), (), (), tuple(attrs))).get("dropout_p") != 0


def private(path: str) -> Any:
    """torch's object at the dotted `path`, or None: for names that are no contract."""
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return None


NUMBERS = {"int": int, "float": float, "bool": bool}


def infer(op: Op, types: Callable[[int], Type], written: Sequence[TensorType]) -> tuple[Type, ...]:
    """The types of the results of `op`, the functional form of one that writes `written`.

    `types(value)` is the type of an operand. Sizes are those of what is written, so only dtypes are
    asked, of a run on tensors with one element; where that fails, of one on tensors without memory
    (torch's Python rules for those load its compiler: seconds). Raises NotImplementedError,
    RuntimeError or ValueError where torch cannot say.
    """
    dense = [tensor(t.dtype, t.sizes, t.strides if t.is_dense else None, t.device) for t in written]
    if schema(op.name).is_random:
        return tuple(dense)
    if op.name.startswith("aten."):
        args = tuple([_asked(arg, types) for arg in op.args])
        attrs = tuple([(key, _asked(arg, types)) for key, arg in op.attrs])
        dtypes = _result_dtypes(op.name, args, attrs, len(written))
        if dtypes is not None:
            return tuple([
                type if type.dtype == name else replace(type, dtype=name)
                for type, name in zip(dense, dtypes)])
    return _infer_without_memory(op, types)


class _Operand(NamedTuple):
    """What a result's dtype hangs on: of a number (rank -1) its type."""

    dtype: str
    rank: int


class _Number(NamedTuple):
    """A constant, told apart from equal ones of other types."""

    type: type
    value: Any


def _asked(arg: Arg, types: Callable[[int], Type]) -> Any:
    """`arg` as far as the dtype of a result hangs on it."""
    if isinstance(arg, tuple):
        return tuple([_asked(part, types) for part in arg])
    if isinstance(arg, Scalar):  # made of sizes
        return _Operand(type_of(arg), -1)
    if not isinstance(arg, (Ref, Item)):
        return _Number(type(arg), arg)
    given = types(arg.id)
    if isinstance(given, ScalarType):
        return _Operand(given.type, -1)
    if not isinstance(given, TensorType):
        raise NotImplementedError(f"an operand of type {given}")
    return _Operand(given.dtype, given.rank)


@functools.lru_cache(maxsize=4096)
def _result_dtypes(name: str, args: tuple, attrs: tuple, count: int) -> tuple[str, ...] | None:
    """The dtypes of `count` results, as a run on single elements gives them; None if none does."""
    for fill in (1, 0):  # ones divide, zeros index
        try:
            with torch.no_grad():
                outcome = overload(name)(
                    *[_one_element(arg, fill) for arg in args],
                    **{key: _one_element(arg, fill) for key, arg in attrs})
        except (RuntimeError, ValueError, IndexError):
            continue
        results = outcome if isinstance(outcome, (tuple, list)) else (outcome,)
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        if len(tensors) == count:
            return tuple([str(tensor.dtype).removeprefix("torch.") for tensor in tensors])
    return None


def _one_element(asked: Any, fill: int) -> Any:
    """An argument that stands for what `asked` says."""
    kind = type(asked)
    if kind is _Number:
        return decode(asked.value, {})
    if kind is _Operand and asked.rank < 0:
        return NUMBERS[asked.dtype](fill)
    if kind is _Operand:
        return torch.full((1,) * asked.rank, fill, dtype=dtype(asked.dtype), device="cpu")
    return [_one_element(part, fill) for part in asked]


def _infer_without_memory(op: Op, types: Callable[[int], Type]) -> tuple[Type, ...]:
    values = {ref: _without_memory(types(ref)) for ref in op.refs()}
    args = [decode(a, values) for a in op.args]
    attrs = {key: decode(a, values) for key, a in op.attrs}
    if "device" in attrs:
        attrs["device"] = torch.device("meta")
    devices = {t.device for t in map(types, op.refs()) if isinstance(t, TensorType)}
    outcome = overload(op.name)(*args, **attrs)
    results = outcome if isinstance(outcome, (tuple, list)) else (outcome,)
    device = next(iter(devices), "cpu")
    return tuple(
        TensorType(str(r.dtype).removeprefix("torch."), tuple(r.shape), r.stride(), device)
        if isinstance(r, torch.Tensor) else NoneType() for r in results
    )


def _without_memory(type: Type) -> torch.Tensor | int | float | bool:
    if isinstance(type, ScalarType):
        return NUMBERS[type.type](1)
    if not isinstance(type, TensorType):
        raise NotImplementedError(f"an operand of type {type}")
    return torch.empty_strided(type.sizes, type.strides, dtype=dtype(type.dtype), device="meta")
