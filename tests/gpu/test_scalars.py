"""Tensors without axes beside 16 bits on a GPU: rounded where torch rounds them, bit for bit. `make test-gpu`."""

import pytest
import torch

import preheat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "atan2": torch.atan2,
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3), "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "maximum": torch.maximum, "fmod": torch.fmod, "remainder": torch.remainder, "hypot": torch.hypot,
    "copysign": torch.copysign, "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "lerp": lambda x, y: torch.lerp(x, x.flip(0), y), "gt": torch.gt,
    "where": lambda x, y: torch.where(x > 0, x, y) if x.dim() else torch.where(y > 0, x, y),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_tensor_without_axes_is_rounded_as_torch_does(dtype, name, device, first):
    x = torch.rand(257, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).mul_(4).add_(0.01).to(dtype)
    for number in (4.7, 0.1, 1.0009765625 + 2 ** -12, 65519.0):
        args = (torch.tensor(number, device=device), x) if first else (x, torch.tensor(number, device=device))
        try:
            expected = OPS[name](*args)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                preheat.compile(OPS[name], options={"cache": False})(*args)
            assert str(raised.value) == str(error)
            continue
        torch.testing.assert_close(
            preheat.compile(OPS[name], options={"cache": False})(*args), expected, rtol=0, atol=0, equal_nan=True,
            msg=lambda told: f"{number}: {told}")
