"""What to do about a new variant, by what differed: one table for the log, the report of the limit and the page.

    hint_of("size")         "mark it before the first call, ..."
    kind_of_tensors("f32[4]", "f32[5]")     "size"

A call is another variant where a guard does not hold, and the guards are of kinds (`ir.trace.Guard`). A number that
the program has looked at has a better hint, by what looked at it: `base/pins.py`. A row that nothing gives is an
error (tests).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from preheat.base.pins import OF_TEST


class Remedy(NamedTuple):
    """what  completes "a call is a new variant where ...";  hint  the one thing to do"""

    what: str
    hint: str


_LENGTH = "keep its length and its keys the same on each call"
REMEDIES: Mapping[str, Remedy] = {
    "size": Remedy(
        "an axis of a tensor has another size",
        "mark it before the first call, preheat.mark_dynamic(tensor, axis), so that one variant takes all its sizes"),
    "size_fixed": Remedy(
        "an axis has another size, and dynamic=False makes each one a variant",
        "leave dynamic=False out, or give options={'buckets': ...}"),
    "size_test": Remedy(
        "sizes decide which way the program, or torch, goes",
        "call it once with such sizes in preheat.warmup: each way is one variant"),
    "rank": Remedy("a tensor has more or fewer axes", "give it the same number of axes on each call"),
    "tensor": Remedy(
        "a tensor has another dtype, device, stride, layout or requires_grad",
        "give it the same dtype, device, strides and requires_grad on each call"),
    "number": Remedy(
        "a number is another one than in the calls before",
        "pass it as a tensor, or leave it: the new variant takes its other values, too, where it only computes with them"),
    "value": Remedy(
        "a text, or a number that is needed as a value, is another one",
        "it is needed as a value (an index, a key, text): look up outside what hangs on it and pass that, or compute "
        "with it in torch or by plain arithmetic"),
    "test": Remedy(
        "a number decides that the program goes another way: each way is a variant", OF_TEST),
    "flag": Remedy(
        "what was True, False or None is another one of these", "leave it: each of them is one variant"),
    "is": Remedy("an object is another one", "pass the same object on each call"),
    "type": Remedy("an object is of another class", "pass one type on each call"),
    "code": Remedy(
        "a function is another one", "make the function once, outside, and pass the same one on each call"),
    "len": Remedy(
        "a list or dict is longer or shorter",
        "keep its length the same on each call, or stack its tensors into one whose size is marked with preheat.mark_dynamic"),
    "keys": Remedy("a dict or set has other keys", _LENGTH),
    "class": Remedy("an attribute of a class was changed", "keep what changes in an attribute of the instance"),
    "missing": Remedy(
        "an attribute or key is there that was not, or the other way round", "set it before the first call, if only to None"),
    "alias": Remedy(
        "tensors share memory, or arguments are one object, that were apart, or the other way round",
        "pass views of one tensor, or one object twice, on each call or on none"),
    "ambient": Remedy(
        "torch is in another mode: grad, inference, autocast, default dtype, deterministic, ...",
        "call it in the same modes each time"),
    "signature": Remedy(
        "there are more or fewer arguments, or others are passed by keyword",
        "pass the same arguments, the same ones by keyword, on each call"),
    "": Remedy("something else that the program read has changed", "keep what changes the same, or pass it as a tensor"),
}
_ROWS: Mapping[str, str] = {
    **dict.fromkeys(("set", "contains"), "keys"), **dict.fromkeys(("isnot", "distinct"), "alias"),
    **dict.fromkeys(("absent", "noattr"), "missing"),
    **dict.fromkeys(("mro", "isinstance", "issubclass"), "type")}
OVER_LIMIT = "or raise options={'recompile_limit': n}"


def hint_of(kind: str) -> str:
    """What to do about a guard of this kind."""
    return REMEDIES.get(_ROWS.get(kind, kind), REMEDIES[""]).hint


_TENSOR = re.compile(r"(\w+)\[([^\]]*)\](.*)")


def kind_of_tensors(expected: str, found: str) -> str:
    """What differs of a tensor, by the texts of what was expected and what was found."""
    before, now = _TENSOR.fullmatch(expected), _TENSOR.fullmatch(found)
    if before is None or now is None or before[1] != now[1]:
        return "tensor"
    sizes, others = _sizes(expected), _sizes(found)
    if len(sizes) != len(others):
        return "rank"
    return "size" if sizes != others else "tensor"


def first_other_axis(expected: str, found: str) -> int:
    """The first axis of which two texts of types, of as many axes, have another size."""
    pairs = zip(_sizes(expected), _sizes(found), strict=True)
    return next(axis for axis, (before, now) in enumerate(pairs) if before != now)


def _sizes(text: str) -> list[str]:
    return [size for size in _TENSOR.fullmatch(text)[2].split(", ") if size]
