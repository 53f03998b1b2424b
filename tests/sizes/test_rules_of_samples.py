"""Every size rule against torch, at the sizes of torch's own samples: none, one, equal, expanded, sliced, any layout.

Each ATen op that an operator of OpInfo runs, forward and backward, is asked of its rule with these very numbers.
"""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from preheat.bridge.ops import arguments
from preheat.bridge.tensors import type_of
from preheat.capture.numbers import Numbers
from preheat.capture.size_call import Call, NoRule, row_major
from preheat.capture.size_rules import RULES
from preheat.ir.graph import Op, Ref, Token

ADJOINT = {"_neg_view", "_conj", "conj", "resolve_conj"}  # marks, of which types say nothing


class Checked(TorchDispatchMode):
    """Compares the rule of each op with what the op gave; `met`: the rules that said something."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = encoded_of(func, args, kwargs or {})
        made = func(*args, **(kwargs or {}))
        try:
            self.check(func, before, made)
        except (NoRule, ValueError):
            pass  # as in `SizeRules.types`: the sizes are pinned
        except Exception as fault:  # a rule that fails
            self.wrong.append(f"{func} of {before[1]}: {type(fault).__name__}: {fault}")
        return made

    def check(self, func, before, made):
        results = [r for r in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(r, torch.Tensor)]
        name = str(func) if "." in str(func).removeprefix("aten.") else f"{func}.default"
        short = name.split(".")[1]
        key = next((k for k in (name, short, short.removesuffix("_")) if k in RULES), None)
        if key is None or before is None or not results or short in ADJOINT or any(map(is_odd, results)):
            return
        named, tensors = before
        numbers = Numbers({}, lambda source, value: None, lambda scalar, answer: None)
        call = Call(name, arguments(named), dict(enumerate(tensors)), list(map(type_of, results)), numbers)
        found = RULES[key](call)
        self.met.add(key)
        for shape, real in zip(found, results, strict=True):
            if shape is None:
                continue
            sizes, strides = shape
            strides = row_major(tuple(sizes)) if strides is None else strides
            pairs = [(a, b) for a, b, n in zip(strides, real.stride(), real.shape) if n > 1]
            if tuple(sizes) != tuple(real.shape) or real.numel() and any(a != b for a, b in pairs):
                self.wrong.append(f"{name} of {[(t.sizes, t.strides) for t in tensors]}: {sizes}, {strides} instead of "
                                  f"{tuple(real.shape)}, {real.stride()}")


def is_odd(tensor):
    return type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized


def encoded_of(func, args, kwargs):
    """The op with its tensors as references, and their types; None where one is no plain tensor."""
    tensors = []

    def one(value):
        if isinstance(value, torch.Tensor):
            tensors.append(None if is_odd(value) else type_of(value))
            return Ref(len(tensors) - 1)
        if isinstance(value, (tuple, list)):
            return tuple(map(one, value))
        if isinstance(value, torch.memory_format):
            return Token("memory_format", str(value).removeprefix("torch."))
        return value

    made = tuple(map(one, args)), tuple((key, one(value)) for key, value in kwargs.items())
    return None if None in tensors else (Op(str(func), made[0], (), (), made[1]), tensors)


def run(operators):
    mode = Checked()
    for op in operators:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))[:30]:
            try:
                with mode:
                    made = op.op(sample.input, *sample.args, **sample.kwargs)
                    wanted = [m for m in (made if isinstance(made, (tuple, list)) else [made])
                              if isinstance(m, torch.Tensor) and m.requires_grad and not m.is_complex()]
                    if wanted:
                        torch.autograd.backward([m.sum() for m in wanted])
            except Exception:  # the operator's own
                continue
    return mode


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_rules_say_what_torch_gives(part):
    mode = run(op_db[part::8])
    assert not mode.wrong, "\n".join(dict.fromkeys(mode.wrong))
