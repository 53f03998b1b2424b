"""What becomes of one op that torch hands to the recorder: run for real, then recorded.

    Recorder.__torch_dispatch__ = dispatch
"""

from typing import Any

from preheat.bridge.draws import generated
from preheat.bridge.failures import fails_by_type
from preheat.bridge import integers, numbered
from preheat.bridge.overloads import Overload, decomposed, facts_of
from preheat.bridge.symint import Shown, has_boxed_size, has_offset, taken, unboxed
from preheat.bridge.tensors import Parameter, Tensor, dtype_name
from preheat.capture.size_call import LAYOUT_QUESTIONS
from preheat.capture.sized_recorder import tensors_in

_PLAIN_CLASSES = frozenset((Tensor, Parameter, Shown))
_READS_ONE = frozenset((
    "aten._local_scalar_dense.default", "aten.item.default", "aten.is_nonzero.default",
))


def dispatch(
    recorder: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None,
) -> Any:
    """Runs one op for real and records it; `__torch_dispatch__` of the mode."""
    func, kwargs = integers.meant(numbered.meant(func)), kwargs or {}
    if recorder.is_generating and not recorder.is_stopped and _PLAIN_CLASSES.issuperset(types):
        draw = generated(func, args, kwargs)
        if draw is not None:
            with recorder:
                return draw()
    if recorder.is_rehearsing:
        return recorder.rehearsal.dispatch(recorder, func, args, kwargs)
    if recorder.is_boxed:
        return _dispatch_boxed(recorder, func, types, args, kwargs)
    return _run(recorder, func, types, args, kwargs, args, kwargs)


def _dispatch_boxed(recorder: Any, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
    """As `dispatch`, when the op may have got symbolic numbers: it runs on the plain ones."""
    out = answered(recorder, func, args, kwargs)
    if out is NotImplemented and not recorder.is_stopped:
        out = in_parts(recorder, func, args, kwargs)
    if out is not NotImplemented:
        return out
    recorder.boxed_ops += 1
    if recorder.rules is None and has_boxed_size(func, args, kwargs):
        recorder.has_sizes()  # a number of the program is the size of what comes from it
    size_of = recorder.rules.size_of if recorder.rules is not None else None
    seen, seen_kwargs = (args, kwargs) if recorder.is_stopped else taken(
        func, args, kwargs, size_of)
    out = _run(recorder, func, types, unboxed(args), unboxed(kwargs), seen, seen_kwargs)
    if recorder.rules is None:
        return out
    place = len(recorder.builder.ops) - 1
    is_recorded = place >= 0 and recorder.builder.ops[place].name == facts_of(func).name
    return recorder.seen_by_c(out, place if is_recorded and not recorder.is_stopped else -1)


def answered(
    recorder: Any, func: Any, args: tuple, kwargs: dict, refusal: type[Exception] = RuntimeError,
) -> Any:
    """What a question of C about a tensor's layout is answered, NotImplemented if it asks none. Raises `refusal` for
    what is not recorded with symbols."""
    question = LAYOUT_QUESTIONS.get(func._schema.name)
    if question is not None and type(args[0]) is Shown:
        return recorder.rules.answer(question, *recorder.typed(*args))
    if has_offset(func, args, kwargs):
        raise refusal(f"{func} of a tensor whose storage begins elsewhere")
    return NotImplemented


def in_parts(recorder: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    """What a composite op gives, made of the ops that it consists of, each recorded; else NotImplemented."""
    facts = facts_of(func)
    if not facts.is_composite or facts.whole_on and any(
            tensor.device.type in facts.whole_on for tensor in tensors_in(args)):
        return NotImplemented
    with recorder:
        return decomposed(func, args, kwargs)


def _run(
    recorder: Any, func: Any, types: Any, args: tuple, kwargs: dict, seen: tuple,
    seen_kwargs: dict,
) -> Any:
    """Runs `func(*args, **kwargs)`, and records it as a call with the arguments `seen`."""
    if recorder.is_stopped:
        return func(*args, **kwargs)
    if not _PLAIN_CLASSES.issuperset(types):
        # operands with a dispatch of their own: their inner ops are recorded instead
        return NotImplemented
    facts = facts_of(func)
    if facts.is_lift:
        return recorder.noted(func, _lift(recorder, func, args, kwargs))
    if facts.name == "aten.detach_.default" and recorder.made(args[0]):
        if not args[0].requires_grad:  # changes what autograd knows of a tensor, which is nothing
            return recorder.noted(func, func(*args))
    out = in_parts(recorder, func, seen, seen_kwargs)
    if out is not NotImplemented:
        return out
    if facts.refusal and recorder.is_weight_buffer(facts, args):
        return recorder.noted(func, func(*args, **kwargs))
    if facts.refusal:
        if not all(recorder.is_fixed(a) for a in args if isinstance(a, Tensor)):
            if facts.name in _READS_ONE and recorder.is_tested(args[0]):
                return recorder.noted(func, func(*args))
            recorder.stop(facts.refusal, facts.name)
        elif facts.refusal == "data_dependent_number":
            return recorder.noted(func, func(*args, **kwargs))
    elif facts.name == "aten.index.Tensor" and _has_mask(recorder, args[1]):
        recorder.stop("data_dependent_shape", "indexing with a boolean mask")
    recorder.has_acted |= _acts(recorder, facts, args, kwargs)
    recorder.before_writes(facts, args)
    try:
        out = func(*args, **kwargs)
    except Exception as error:
        if not fails_by_type(func, args, kwargs):
            recorder.stop("host_raised", f"{facts.name}: {type(error).__name__}")
        raise
    if not recorder.is_stopped:
        try:
            recorder.record(facts, seen, seen_kwargs, out)
            recorder.noted(func, out, len(recorder.builder.ops) - 1)
        except Exception as error:  # ours: the program, which has run the op, must not see it
            recorder.stop("fault", f"{facts.name}: {type(error).__name__}: {error}")
    return out


def _acts(recorder: Any, facts: Overload, args: tuple, kwargs: dict) -> bool:
    """Whether the call under way cannot be made once more after this op: it draws random numbers, or writes to
    memory that was there before the call."""
    if facts.is_random and not facts.name.startswith(("aten.empty", "aten.new_empty")):
        return True
    written = [args[place] if place < len(args) else kwargs.get(name) for place, name in facts.writes]
    return not all(map(recorder.is_of_call, tensors_in(written)))


def _lift(recorder: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    (tensor,) = args
    known = recorder.value_of(tensor)
    out = func(*args, **kwargs)
    if known is None:
        known = recorder.constant(out)
    if out is not tensor and recorder.value_of(out) is None:
        recorder.learn(out, known)
    return out


def _has_mask(recorder: Any, indices: Any) -> bool:
    """Whether an index is a mask with an unknown number of true elements."""
    return any(
        i is not None and dtype_name(i.dtype) in ("bool", "uint8") and not recorder.is_fixed(i)
        for i in indices)
