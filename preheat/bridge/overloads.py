"""What an overload of torch says of itself, in its schema and tags: what the recorder must know.

    facts_of(torch.ops.aten.add_.Tensor)   name "aten.add_.Tensor", writes ((0, "self"),), ...
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from preheat.bridge.ops import private

_RESIZING = frozenset(("resize_", "resize_as_", "set_", "_resize_output_", "swap_", "resize"))
# The way to a kernel of C++ by its key, past one that torch has in Python for its own compiler.
_COMPOSITE = private("_C.DispatchKey.CompositeImplicitAutograd")
_DEVICES = (("cpu", "CPU"), ("cuda", "CUDA"))
_CAN_SKIP_PYTHON = _COMPOSITE is not None and hasattr(torch.ops.aten.matmul.default, "_op_dk")

# What torch 2.11 does not say of ops that compute each element by itself.
_POINTWISE = frozenset((
    "aten._conj_physical.default", "aten.celu_.default", "aten.elu_.default", "aten.hardsigmoid_.default",
    "aten.hardtanh_.default", "aten.leaky_relu.default", "aten.leaky_relu_.default", "aten.selu_.default"))


class Overload(NamedTuple):
    """What an overload's schema and tags say."""

    name: str  # "aten.add.Tensor"
    writes: tuple[tuple[int, str], ...]  # position and name of each argument it writes
    is_composite: bool  # arrives whole only below autograd, as under inference mode
    whole_on: frozenset[str]  # the types of devices that have a kernel of their own for a composite
    is_lift: bool
    is_random: bool  # or leaves memory uninitialised
    refusal: str  # a row of reasons.py, or ""
    is_pointwise: bool = False


def decomposed(func: Any, args: tuple, kwargs: dict) -> Any:
    """What a composite gives, by the parts that eager makes it of."""
    if func.py_kernels:
        return func._op_dk(_COMPOSITE, *args, **kwargs)
    return func.decompose(*args, **kwargs)


@lru_cache(maxsize=None)
def facts_of(func: Any) -> Overload:
    """The facts of an overload of torch.ops, looked up once."""
    schema = func._schema
    writes = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    name = str(func)
    base = schema.name.partition("::")[2]
    refusal = ""
    if torch.Tag.data_dependent_output in func.tags:
        refusal = "data_dependent_number"
    elif torch.Tag.dynamic_output_shape in func.tags and name != "aten.index.Tensor":
        refusal = "data_dependent_shape"
    elif base in _RESIZING or name == "aten.detach_.default":
        refusal = "metadata_write"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_composite = has_kernel(func.name(), "CompositeImplicitAutograd")
    whole_on = [device for device, key in _DEVICES if is_composite and has_kernel(func.name(), key)]
    is_seeded = torch.Tag.nondeterministic_seeded in func.tags
    is_random = is_seeded or base.startswith(("empty", "new_empty"))
    return Overload(
        name, writes, is_composite and (_CAN_SKIP_PYTHON or not func.py_kernels), frozenset(whole_on),
        base == "lift_fresh", is_random,
        refusal, torch.Tag.pointwise in func.tags or name in _POINTWISE)
