"""Every reason why a call was not captured, in one table: what happened and one thing to do.

    explain("host_call", "time.time")  ->  ("calls time.time, whose result ...", "compute ...")

`{detail}` stands for the values of the one case. A row that nothing raises is an error (tests).
"""

from typing import NamedTuple


class Reason(NamedTuple):
    """sentence: completes "the call ran eager because it ..."; hint: one thing to do."""

    sentence: str
    hint: str


REASONS: dict[str, Reason] = {
    # -------------------------------------------------------------- tensors
    "training": Reason(
        "runs an op on a tensor that requires grad while grad mode is on ({detail})",
        "call it under torch.no_grad() or torch.inference_mode()",
    ),
    "data_dependent_branch": Reason(
        "decides something by the value of a tensor ({detail})",
        "express the choice as tensor arithmetic, such as torch.where",
    ),
    "data_dependent_number": Reason(
        "turns the value of a tensor into a Python number ({detail})",
        "keep the value a tensor, or compute the number outside the compiled function",
    ),
    "data_dependent_shape": Reason(
        "makes a tensor whose size depends on values ({detail})",
        "use a form with a fixed size, such as torch.where or a mask",
    ),
    "tensor_escape": Reason(
        "hands the memory or the values of a tensor to something that is not an op ({detail})",
        "move the conversion out of the compiled function",
    ),
    "tensor_attribute": Reason(
        "reads {detail} of a tensor, which no guard covers",
        "read it outside the compiled function",
    ),
    "tensor_subclass": Reason(
        "uses a tensor that is not plain and dense ({detail})",
        "convert it to a plain tensor before the call",
    ),
    "untracked_tensor": Reason(
        "uses a tensor that no recorded op made and no argument or attribute leads to ({detail})",
        "make the tensor with torch ops, or pass it as an argument",
    ),
    "metadata_write": Reason(
        "changes the sizes, strides or storage of an existing tensor ({detail})",
        "use the form of the op that returns a new tensor",
    ),
    "overlapping_write": Reason(
        "writes to memory that the same op reads in another order ({detail})",
        "clone the operand that is read",
    ),
    "op_argument": Reason(
        "calls an op with an argument that a trace cannot hold ({detail})",
        "pass plain numbers, dtypes and tensors to ops",
    ),
    # -------------------------------------------------------------- effects
    "write_outside": Reason(
        "changes an object that exists outside the call ({detail})",
        "return the new value and store it in the caller",
    ),
    "ambient_change": Reason(
        "leaves torch's state changed ({detail})",
        "make the change outside the compiled function",
    ),
    "inference_mode_inside": Reason(
        "enters or leaves inference mode inside the call",
        "enter torch.inference_mode() around the call",
    ),
    "host_call": Reason(
        "calls {detail}, whose result or effect a replay cannot repeat",
        "call it outside the compiled function and pass its result in",
    ),
    "disabled_function": Reason(
        "calls {detail}, which is marked as not to be compiled",
        "remove the mark, or call the function outside",
    ),
    "native_python": Reason(
        "calls {detail}, a kind of Python function that is not interpreted",
        "call it outside the compiled function",
    ),
    # -------------------------------------------------------------- objects
    "opaque_argument": Reason(
        "lets C code look at an object whose reads cannot be seen ({detail})",
        "convert the object to plain numbers, lists or dicts first",
    ),
    "outside_iterator": Reason(
        "advances an iterator that existed before the call ({detail})",
        "pass a list, or make the iterator inside",
    ),
    "foreign_state": Reason(
        "runs where Preheat cannot watch ({detail})",
        "call it without that state",
    ),
    "no_recipe": Reason(
        "returns an object that cannot be rebuilt ({detail})",
        "return tensors, numbers, containers or dataclasses of them",
    ),
    "fault": Reason(
        "met a fault of Preheat's own ({detail})",
        "please report it with the program",
    ),
    # -------------------------------------------------------------- limits
    "limit_ops": Reason(
        "runs more ops than the limit ({detail})", "raise max_ops, or compile a part of it"),
    "bytecodes": Reason(
        "runs more bytecodes than the limit ({detail})",
        "raise max_bytecodes, or compile a part of it"),
    "limit_guards": Reason(
        "reads more outside state than the limit ({detail})", "compile a part of it"),
}


def explain(reason: str, detail: str) -> tuple[str, str]:
    """The sentence and the hint of one case."""
    row = REASONS[reason]
    return row.sentence.format(detail=detail), row.hint
