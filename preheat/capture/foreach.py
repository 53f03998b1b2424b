"""Ops on lists of tensors as the ops on each of them that torch does on a CPU.

    aten._foreach_mul_.Scalar([%0, %1], 0.9)    ->    aten.mul_.Tensor(%0, 0.9), aten.mul_.Tensor(%1, 0.9)

What has no row stays one op, a library call. Source: aten/src/ATen/native/ForeachOpsKernels.cpp.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from preheat.bridge.ops import exists, overload
from preheat.bridge.overloads import Overload, facts_of

_PREFIX = "aten._foreach_"
_OF_TWO = {"Scalar": "Tensor", "List": "Tensor", "ScalarList": "Tensor", "Tensor": "Tensor"}
# By name: the overload for each overload on lists.
_OVERLOADS: dict[str, dict[str, str]] = {
    **dict.fromkeys("add sub mul div".split(), _OF_TWO),
    **dict.fromkeys("addcmul addcdiv".split(), {"Scalar": "default", "ScalarList": "default"}),
    **dict.fromkeys("maximum minimum".split(), {"List": "default"}),
    **dict.fromkeys("clamp_min clamp_max".split(), {"Scalar": "default", "ScalarList": "default"}),
    "lerp": {"Scalar": "Scalar", "ScalarList": "Scalar", "List": "Tensor"},
    "pow": {"Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar", "List": "Tensor_Tensor",
            "ScalarAndTensor": "Scalar"},
    **dict.fromkeys(
        "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac log log10 log1p log2 neg "
        "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero copy".split(),
        {"default": "default"}),
}
_VALUE_BY_NAME = frozenset(("addcmul", "addcdiv"))  # the number is a keyword argument there


def spread(
    facts: Overload, args: tuple, kwargs: dict, out: Any,
) -> Iterator[tuple[Overload, tuple, dict, Any]] | None:
    """The calls, each with its result, that an op on lists is; None for any other op."""
    found = _single(facts.name) if facts.name.startswith(_PREFIX) else None
    return None if found is None else _calls(*found, args, kwargs, out)


@lru_cache(maxsize=None)
def _single(name: str) -> tuple[Overload, str] | None:
    """The op on one tensor, and its name without an underscore."""
    base, _, given = name.removeprefix(_PREFIX).partition(".")
    wanted = _OVERLOADS.get(base.rstrip("_"), {}).get(given)
    if wanted is None:
        return None
    name = base.rstrip("_")
    if exists(f"aten.{base}.{wanted}"):
        return facts_of(overload(f"aten.{base}.{wanted}")), name
    return facts_of(overload(f"aten.{name}.out")), name  # `maximum_` is only there for lists


def _calls(
    single: Overload, name: str, args: tuple, kwargs: dict, out: Any,
) -> Iterator[tuple[Overload, tuple, dict, Any]]:
    lists = [arg for arg in (*args, *kwargs.values()) if type(arg) in (list, tuple)]
    for index in range(len(lists[0])):
        each = tuple([_at(arg, index) for arg in args])
        named = {key: _at(arg, index) for key, arg in kwargs.items()}
        result = each[0] if single.writes else out[index]
        if name in _VALUE_BY_NAME and len(each) > 3:
            each, named = each[:3], {**named, "value": each[3]}
        if single.name.endswith(".out"):
            named["out"] = result
        if "scalars" in named:
            named["value"] = named.pop("scalars")
        yield single, each, {k: v for k, v in named.items() if k != "non_blocking"}, result


def _at(arg: Any, index: int) -> Any:
    return arg[index] if type(arg) in (list, tuple) else arg
