"""Every module that torch's own ModuleInfo table describes, in training and in evaluation.

For each sample in float32: four steps eager and compiled on modules of equal weights. In training
each step is a forward, a backward under tangents of its own, and an update of the parameters in
place; in evaluation a forward without gradients. Results, gradients of arguments and parameters,
and what the module holds afterwards (batch statistics, lazy parameters, generators) are eager's.
The whole table is `make test-opinfo`; `make test` takes every 12th module with one sample.
"""

import copy

import pytest
import torch
from torch.testing._internal.common_modules import module_db

import preheat
from tests.training.test_gradients import compare, flat, mapped

STEPS = 4
# name -> why it is not compared
ELSEWHERE = dict.fromkeys(
    ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"),
    "the table's samples of another dtype than the input are refused by torch")


def rows(step=1):
    for info in (info for info in module_db[::step] if info.name not in ELSEWHERE):
        yield pytest.param(info, id=info.name)


@pytest.mark.opinfo
@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", rows())
def test_module(info, is_training):
    check(info, is_training, 3)


@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", rows(step=12))
def test_module_quickly(info, is_training):
    check(info, is_training, 1)


def check(info, is_training, count):
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=is_training)
    samples = list(samples)
    for sample in samples[::max(1, len(samples) // count)][:count]:
        made = sample.constructor_input
        torch.manual_seed(0)
        module = info.module_cls(*made.args, **made.kwargs).train(is_training)
        twin = copy.deepcopy(module)
        compiled = preheat.compile(twin, options={"cache": False})
        given, before = sample.forward_input, preheat.counters()["captures"]
        for number in range(STEPS):
            exact = copy.deepcopy(module).double()
            expected = run(module, module, given, number, is_training)
            found = run(compiled, twin, given, number, is_training)
            compare(
                expected, found,
                lambda: run(exact, exact, given, number, is_training, torch.float64), number)
            assert not isinstance(expected[0], type), expected[0]
        assert preheat.counters()["captures"] > before


def run(call, module, given, number, is_training, dtype=torch.float32):
    """Results, gradients and the module's state after a step, or the exception."""
    leaves = []

    def fresh(value):
        if isinstance(value, torch.Tensor):
            made = value.detach().clone()
            made = made.to(dtype) if made.dtype is torch.float32 else made
            if is_training and value.requires_grad:
                leaves.append(made.requires_grad_())
            return made
        return mapped(fresh, value)

    args, kwargs = fresh(given.args), fresh(given.kwargs)
    torch.manual_seed(number)
    try:
        with torch.set_grad_enabled(is_training):
            results = [t for t in flat(call(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    except Exception as error:
        return type(error), ()
    leaves += module.parameters()
    outputs = [t for t in results if t.requires_grad]
    grads = [None] * len(leaves)
    if outputs:
        generator = torch.Generator().manual_seed(number)
        tangents = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs]
        grads = list(torch.autograd.grad(outputs, leaves, tangents, allow_unused=True))
        with torch.no_grad():
            for leaf, grad in zip(leaves, grads):
                if grad is not None and leaf.is_leaf:
                    leaf -= 0.01 * grad
    state = [t.detach().clone() for t in module.state_dict().values()]
    return [t.detach() for t in results], [*grads, *state, torch.get_rng_state()]
