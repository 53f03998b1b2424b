"""Fused updates of optimizers as the ops on lists that they stand for, interpreted by the machine.

    torch._fused_adamw_(params, grads, ..., lr=lr)    ->    torch._foreach_mul_(params, 1 - lr * decay)
                                                            torch._foreach_lerp_(averages, grads, ...)

torch's own kernels take their numbers as they are, so each learning rate would be a variant. These
take runtime numbers, and are fused again. A scale of the gradients is taken out of them as torch's
kernels do; where infinities were found, everything stays as it was. Written are the formulas of
aten/src/ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp; on a GPU, where counters lie on the
device, those of `capturable` in torch/optim/adam.py. Covered are floats of one dtype, of 32 or 64
bits; others stay torch's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from preheat.bridge.ops import private
from preheat.bridge.tensors import Tensor
from preheat.capture.calls import c_call, invoke
from preheat.capture.models import MODELS

add, add_, mul_, div_ = (private(f"_foreach_{name}") for name in ("add", "add_", "mul_", "div_"))
sub_, neg, neg_, power = (private(f"_foreach_{name}") for name in ("sub_", "neg", "neg_", "pow"))
copy_, lerp_, maximum_ = (private(f"_foreach_{name}") for name in ("copy_", "lerp_", "maximum_"))
sqrt, sqrt_, reciprocal_ = (private(f"_foreach_{n}") for n in ("sqrt", "sqrt_", "reciprocal_"))
addcmul_, addcdiv_ = (private(f"_foreach_{name}") for name in ("addcmul_", "addcdiv_"))
where = private("where")

_DTYPES = frozenset(("torch.float32", "torch.float64"))


# ---------------------------------------------------------------------------- the updates
def adam(params, grads, averages, squares, largest, steps, **numbers):
    update(adam_update, (params, grads, averages, squares, largest), steps, False, **numbers)


def adamw(params, grads, averages, squares, largest, steps, **numbers):
    update(adam_update, (params, grads, averages, squares, largest), steps, True, **numbers)


def sgd(params, grads, momenta, **numbers):
    update(sgd_update, (params, grads, momenta), **numbers)


def adagrad(params, grads, sums, steps, **numbers):
    update(adagrad_update, (params, grads, sums), steps, **numbers)


def update(formula, lists, *others, grad_scale=None, found_inf=None, maximize=False, **numbers):
    """`formula` of the gradients as they are meant; undone where an infinity was found."""
    before = []
    if found_inf is not None:
        found_inf = found_inf.reshape(()) == 1
        for tensors in lists:
            for tensor in tensors:
                before.append((tensor, tensor.clone()))
    grads = lists[1]
    if grad_scale is not None:
        grad_scale = grad_scale.reshape(())
        for grad in grads:
            grad.div_(grad_scale)
    if maximize:
        grads = neg(grads)
    formula(lists[0], grads, *lists[2:], *others, **numbers)
    for tensor, old in before:
        tensor.copy_(where(found_inf, old, tensor))


def adam_update(
    params, grads, averages, squares, largest, steps, is_decoupled, *, lr, beta1, beta2,
    weight_decay, eps, amsgrad,
):
    if weight_decay != 0:
        if is_decoupled:
            mul_(params, 1 - number_of(lr) * weight_decay)
        else:
            grads = add(grads, params, alpha=weight_decay)
    lerp_(averages, grads, 1 - beta1)
    mul_(squares, beta2)
    addcmul_(squares, grads, grads, 1 - beta2)
    if amsgrad:
        maximum_(largest, squares)
        squares = largest
    roots = sqrt(squares)
    if steps[0].is_cpu:
        lr = number_of(lr)
        counts = [step.item() for step in steps]
        div_(roots, [(1 - beta2**count) ** 0.5 for count in counts])
        add_(roots, eps)
        addcdiv_(params, averages, roots, [-lr / (1 - beta1**count) for count in counts])
        return
    first, second = power(beta1, steps), power(beta2, steps)
    sub_(first, 1)
    sub_(second, 1)
    neg_(second)
    div_(first, lr)
    reciprocal_(first)
    sqrt_(second)
    div_(roots, second)
    add_(roots, eps)
    div_(roots, first)
    addcdiv_(params, averages, roots)


def sgd_update(
    params, grads, momenta, *, lr, weight_decay, momentum, dampening, nesterov, is_first_step,
):
    if weight_decay != 0:
        grads = add(grads, params, alpha=weight_decay)
    if momentum != 0:
        if is_first_step:
            copy_(momenta, grads)
        else:
            mul_(momenta, momentum)
            add_(momenta, grads, alpha=1 - dampening)
        grads = add(grads, momenta, alpha=momentum) if nesterov else momenta
    if isinstance(lr, Tensor) and not lr.is_cpu:
        for param, grad in zip(params, grads):
            param.sub_(grad * lr)
    else:
        add_(params, grads, alpha=-number_of(lr))


def adagrad_update(params, grads, sums, steps, *, lr, lr_decay, weight_decay, eps):
    lr = number_of(lr)
    if weight_decay != 0:
        grads = add(grads, params, alpha=weight_decay)
    addcmul_(sums, grads, grads, 1)
    roots = sqrt(sums)
    add_(roots, eps)
    addcdiv_(params, grads, roots, [-lr / (1 + (step.item() - 1) * lr_decay) for step in steps])


def number_of(lr):
    """A learning rate that a tensor of the CPU holds; any other as it is."""
    return lr.item() if isinstance(lr, Tensor) and lr.is_cpu else lr


# ---------------------------------------------------------------------------- their models
def _is_covered(lists: Sequence, steps: Sequence, kwargs: dict) -> bool:
    tensors = [tensor for part in (*lists, steps) for tensor in part]
    tensors += [kwargs[name] for name in ("grad_scale", "found_inf") if kwargs.get(name) is not None]
    first = tensors[0] if tensors else None
    is_alike = all(
        isinstance(t, Tensor) and t.layout == first.layout and t.device == first.device for t in tensors)
    dtypes = {str(tensor.dtype) for part in lists for tensor in part} if is_alike else set()
    return len(dtypes) == 1 and dtypes <= _DTYPES and str(first.layout) == "torch.strided"


def _model(function: Any, formula: Callable, has_steps: bool) -> Callable:
    def model(m: Any, args: tuple | list, kwargs: dict) -> Any:
        lists, steps = (args[:-1], args[-1]) if has_steps else (args, ())
        if len(args) != formula.__code__.co_argcount or not _is_covered(lists, steps, kwargs):
            return c_call(m, function, args, kwargs)
        return invoke(m, formula, args, kwargs)

    return model


for _name, _formula in (
    ("_fused_adam_", adam), ("_fused_adamw_", adamw), ("_fused_sgd_", sgd),
    ("_fused_adagrad_", adagrad),
):
    if (_function := private(_name)) is not None:
        MODELS[_function] = _model(_function, _formula, "steps" in _formula.__code__.co_varnames)
