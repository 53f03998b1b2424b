"""Gradients where two pieces of a function meet: the library's choice, to the bit."""

import pytest
import torch
import torch.nn.functional as F

import preheat

AT = {
    F.hardswish: (-3.0, 3.0), F.hardsigmoid: (-3.0, 3.0), F.hardtanh: (-1.0, 1.0), F.relu6: (0.0, 6.0),
    F.hardshrink: (-0.5, 0.5), F.softshrink: (-0.5, 0.5), F.relu: (0.0,), F.leaky_relu: (0.0,), F.elu: (0.0,),
    F.selu: (0.0,), F.celu: (0.0,), F.softsign: (0.0,), F.logsigmoid: (0.0,), F.softplus: (20.0,),
    torch.abs: (0.0,), torch.sign: (0.0,), torch.sqrt: (0.0,), torch.sinc: (0.0,), torch.trunc: (1.0,),
    torch.acos: (-1.0, 1.0), torch.atanh: (-1.0, 1.0),
}
OTHERS = {
    "threshold": lambda x: F.threshold(x, 0.0, 0.0), "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(0), "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "fmax": lambda x: torch.fmax(x, torch.zeros_like(x)), "norm": lambda x: x.norm(),
    "power": lambda x: x**0, "half": lambda x: x**1.5, "remainder": lambda x: torch.remainder(x, 1.0),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x)), "l1": lambda x: F.l1_loss(x, torch.zeros_like(x)),
    "smooth": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), "atan2": lambda x: torch.atan2(x, x),
    "hypot": lambda x: torch.hypot(x, x), "amax": lambda x: x.amax(), "median": lambda x: x.median(),
}
BEYOND = (float("nan"), float("inf"), -float("inf"))
UNSTEADY = ("hardswish", "hardtanh", "relu6")  # of NaN the library's vectors and its tails give different gradients
MIXED = (-6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*(f.__name__ for f in AT), *OTHERS])
def test_the_gradient_at_a_corner(name, dtype):
    named = {f.__name__: f for f in AT} | OTHERS
    function, corners = named[name], {f.__name__: c for f, c in AT.items()}.get(name, MIXED)
    beyond = BEYOND[name in UNSTEADY:]
    x = torch.tensor((*corners, *beyond), dtype=dtype).repeat(16).requires_grad_()

    def program(x):
        return function(x).sum()

    (expected,) = torch.autograd.grad(program(x), x)
    compiled = preheat.compile(program, options={"cache": False})
    for _ in range(4):
        (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, expected, equal_nan=True)
