"""A small recorder for tests: runs a function and gives its ATen ops as a graph, as capture would.

    graph, given, outputs = record(fn, [x, weight])

Independent of `preheat.capture`, so that a fault there does not hide one here.
"""

from collections.abc import Callable, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from preheat.bridge.ops import encode, name_of, schema
from preheat.ir.graph import Arg, Builder, Graph, Op, Ref
from preheat.ir.types import NoneType, ScalarType, TensorType


def type_of(t: torch.Tensor) -> TensorType:
    return TensorType(str(t.dtype).removeprefix("torch."), tuple(t.shape), t.stride(), str(t.device))


# In-place ops that change sizes or strides are recorded as the views they are, as capture does.
VIEW_OF_INPLACE = {
    f"aten.{name}_.{variant}": f"aten.{name}.{variant}" for name, variant in (
        ("unsqueeze", "default"), ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"), ("t", "default"),
    )
} | {"aten.transpose_.default": "aten.transpose.int"}


class Recorder(TorchDispatchMode):
    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.builder, self.values, self.storages, self.held = Builder("aten"), {}, {}, []
        self.extra: list[torch.Tensor] = []
        for i, t in enumerate(inputs):
            self.input(t, f"x{i}")

    def input(self, t: torch.Tensor, name: str) -> int:
        return self.learn(t, self.builder.input(type_of(t), name))

    def learn(self, t: torch.Tensor, value: int) -> int:
        self.values[id(t)] = value
        self.held.append(t)
        self.storages.setdefault(t.untyped_storage()._cdata, value)
        return value

    def encode(self, a) -> Arg:
        if isinstance(a, torch.Tensor):
            if id(a) not in self.values:
                self.extra.append(a)
                self.input(a, "outside")
            return Ref(self.values[id(a)])
        if isinstance(a, (list, tuple)):
            return tuple(self.encode(x) for x in a)
        return encode(a)

    def record(self, func, args, kwargs, out) -> None:
        name = name_of(func)
        encoded = tuple(self.encode(a) for a in args)
        attrs = tuple((k, self.encode(v)) for k, v in kwargs.items())
        named = dict(zip((p.name for p in schema(name).parameters), args)) | kwargs
        writes = tuple(
            self.values[id(t)] for p in schema(name).parameters if p.is_written
            for t in tree_leaves(named.get(p.name)) if isinstance(t, torch.Tensor)
        )
        if name in VIEW_OF_INPLACE:
            name, writes = VIEW_OF_INPLACE[name], ()
            del self.values[id(args[0])]
        results, types, aliases = [], [], []
        for t in tree_leaves(out) if not isinstance(out, torch.Tensor) else [out]:
            if isinstance(t, torch.Tensor):
                old = self.values.get(id(t))
                key = t.untyped_storage()._cdata
                aliases.append(old if old is not None else self.storages.get(key, -1))
                if old is None:
                    old = self.builder.fresh()
                    self.learn(t, old)
                self.builder.type_of.setdefault(old, type_of(t))
                results.append(old)
                types.append(type_of(t))
            elif t is None:
                results.append(-1), types.append(NoneType()), aliases.append(-1)
            else:
                results.append(self.builder.fresh()), types.append(ScalarType(type(t).__name__)), aliases.append(-1)
        self.builder.ops.append(Op(name, encoded, tuple(results), tuple(types), attrs, writes, tuple(aliases)))


def _dispatch(self, func, types, args=(), kwargs=None):
    kwargs = kwargs or {}
    for tensor in tree_leaves((args, kwargs)):  # known by the metadata they have before the op
        if isinstance(tensor, torch.Tensor):
            self.encode(tensor)
    out = func(*args, **kwargs)
    if func.namespace != "prim":
        self.record(func, args, kwargs, out)
    return out


Recorder.__torch_dispatch__ = _dispatch


def record(fn: Callable, inputs: Sequence[torch.Tensor]) -> tuple[Graph, list[torch.Tensor], list[torch.Tensor]]:
    """The graph of `fn(*inputs)`, the tensors that feed it (outside ones included) and fn's tensors."""
    recorder = Recorder(inputs)
    with torch.no_grad(), recorder:
        out = fn(*inputs)
    outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
    ids = []
    for t in outputs:
        recorder.encode(t)
        ids.append(recorder.values[id(t)])
    return recorder.builder.finish(ids), [*inputs, *recorder.extra], outputs
