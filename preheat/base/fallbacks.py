"""Every reason why a graph, or its gradients, run op by op through torch: right, but not fused.

    with_hint("no_kernel: tensors on xpu")   ->   "no_kernel: tensors on xpu; keep such tensors out ..."

The call was captured whole: reasons for breaks are in `reasons.py`. The page docs/breaks.md shows
both tables; a row that nothing raises is an error (tests).
"""

from typing import NamedTuple


class Fallback(NamedTuple):
    """sentence  completes "it runs op by op because it ...";  hint  one thing to do, if any"""

    sentence: str
    hint: str


FALLBACKS: dict[str, Fallback] = {
    "no_kernel": Fallback(
        "has a device, an op or a dtype that no code is generated for",
        "keep such tensors out of it, or leave it: the ops are torch's own"),
    "higher_order_op": Fallback(
        "calls an operator that takes functions, such as cond", "leave it: torch runs it"),
    "written_overlap": Fallback(
        "writes to memory that holds an element twice, or that another input holds too",
        "write to a clone of the tensor"),
    "written_by_library": Fallback(
        "lets an op without kernels write to one of its operands",
        "use the form of the op that returns a new tensor"),
    "written_view": Fallback(
        "writes through a view whose way back to its base is not known",
        "write to the base, or build the result with torch.where or torch.cat"),
    "unknown_view": Fallback(
        "takes a view whose elements do not follow from sizes and strides",
        "use reshape, slices or gather instead of as_strided"),
    "alias": Fallback(
        "returns memory as another dtype than it was made as", "return a clone of the view"),
    "unknown_history": Fallback(
        "mixes in-place writes, no_grad and views so that gradients do not follow from the ops",
        "write results to new tensors where gradients are taken"),
    "number_with_gradient": Fallback(
        "computes with a number that changes from call to call and with gradients",
        "pass the number as a tensor"),
    "symbolic": Fallback(
        "decides by sizes that change where a kernel needs one number",
        "leave it: sizes that come again get plans of their own"),
    "symbolic_gradient": Fallback(
        "has a backward that was not the same, or not recorded, for sizes that change",
        "leave it: each size gets a backward of its own"),
    "guard_kind": Fallback(
        "was stored with a guard that this version does not know", "clear the cache folder"),
    "slot": Fallback(
        "was stored with a value that its place in the program does not have",
        "clear the cache folder"),
    "unresolved": Fallback(
        "was stored with a name that this process does not have", "import what it names"),
}


def with_hint(why: str) -> str:
    """Why something runs op by op ("no_kernel: tensors on xpu"), with what to do about it."""
    row = FALLBACKS.get(why.partition(":")[0])
    return why if row is None else f"{why}; {row.hint}"
