"""Nouns to bytes and back: msgpack of plain lists, no code runs on load.

    decode(encode(graph)) == graph;  digest(graph) is stable across processes and machines

A noun becomes an extension value: its class number and its fields in order. Classes are a closed
table, so a foreign file can only make nouns.
"""

import dataclasses
import hashlib
from typing import Any

import msgpack

from preheat.ir import graph, loop, plan, scalar, trace, types

# Append only: the position of a class is its number on disk.
NOUNS: tuple[type, ...] = (
    scalar.Scalar, types.TensorType, types.ScalarType, types.NoneType,
    graph.Ref, graph.Token, graph.Op, graph.Input, graph.Graph,
    loop.Axis, loop.Index, loop.Param, loop.LoopOp, loop.Stage, loop.Kernel,
    plan.Target, plan.Buffer, plan.KernelCall, plan.ProductCall, plan.LibraryCall, plan.Output,
    plan.Plan, plan.Image,
    trace.Named, trace.Live, trace.At, trace.Source, trace.Guard, trace.TensorFacts, trace.Code,
    trace.Step, trace.Recipe, trace.Write, trace.Return, trace.Branch, trace.Host, trace.Goto,
    trace.Loop, trace.Node, trace.Snapshot, trace.Point, trace.Signature, trace.Trace,
    graph.OutputAlias,
    graph.Store,
)
_NUMBER = {cls: i for i, cls in enumerate(NOUNS)}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in NOUNS}
_COMPLEX, _ELLIPSIS, _BIGINT = 120, 121, 122


def encode(value: Any) -> bytes:
    """`value` (a noun, or tuples, dicts and primitives of nouns) as bytes.

    Raises TypeError for an object that is no noun.
    """
    return msgpack.packb(value, default=_default, strict_types=True, use_bin_type=True)


def decode(data: bytes) -> Any:
    """The value that `encode` got. Raises ValueError for bytes that are not one."""
    try:
        return msgpack.unpackb(data, ext_hook=_ext_hook, use_list=False, strict_map_key=False)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"not an encoded noun: {error}") from error


def digest(value: Any) -> str:
    """A name for the content of `value`: 32 hex digits of BLAKE2b over its encoding."""
    return hashlib.blake2b(encode(value), digest_size=16).hexdigest()


def _default(value: Any) -> Any:
    cls = type(value)
    if cls is tuple:  # strict_types hands tuples here: they are arrays on disk
        return list(value)
    number = _NUMBER.get(cls)
    if number is not None:
        return msgpack.ExtType(number, encode([getattr(value, name) for name in _FIELDS[cls]]))
    if cls is complex:
        return msgpack.ExtType(_COMPLEX, encode([value.real, value.imag]))
    if value is Ellipsis:
        return msgpack.ExtType(_ELLIPSIS, b"")
    if cls is int:
        return msgpack.ExtType(_BIGINT, str(value).encode())
    raise TypeError(f"not a noun of the IR: {cls.__module__}.{cls.__qualname__}")


def _ext_hook(number: int, data: bytes) -> Any:
    if number < len(NOUNS):
        return NOUNS[number](*decode(data))
    if number == _COMPLEX:
        return complex(*decode(data))
    if number == _ELLIPSIS:
        return Ellipsis
    if number == _BIGINT:
        return int(data)
    raise ValueError(f"unknown noun number {number}")
