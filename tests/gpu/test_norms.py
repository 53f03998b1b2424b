"""Batch norm that trains on a GPU, generated: statistics, gradients and running statistics eager's. `make test-gpu`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preheat
from gpu.test_training import NO_CACHE, no_fallback, of, trains
from preheat.differentiate import Lesson
from preheat.ir.plan import LibraryCall

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
CHANNELS = 32


class Net(nn.Module):
    """Norm, sigmoid, norm with a residual: `norm` makes each of CHANNELS. (A relu at one of millions of elements that
    are zero but for rounding would fall on the other side.)"""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = norm(), norm()

    def forward(self, x):
        return torch.tanh(x * 0.1 + self.second(torch.sigmoid(self.first(x)) * 2))


def shifted(*sizes, layout=torch.contiguous_format):
    """Images whose channels have means far from zero."""
    def inputs(k):
        x = of(*sizes)(k)[0].detach()
        x = x * 2 + torch.linspace(-9, 9, sizes[1], device="cuda").view(1, -1, *(1,) * (len(sizes) - 2))
        return [x.contiguous(memory_format=layout).requires_grad_()]
    return inputs


@pytest.fixture
def calls(monkeypatch):
    """The library calls of what is compiled, by name."""
    found, compiled = [], Lesson.compiled

    def seen(self, *args, **options):
        plan, image, training = compiled(self, *args, **options)
        plans = plan, *(stage.plan for backward in training.backwards for stage in backward.stages)
        found.extend(call.op for one in plans for call in one.calls if isinstance(call, LibraryCall))
        return plan, image, training

    monkeypatch.setattr(Lesson, "compiled", seen)
    return found


# In parts that a program holds, and that it walks; in parts of images, in some images each; padded, and too few for parts.
IMAGES = ((8, CHANNELS, 48, 48), (32, CHANNELS, 112, 112), (6, CHANNELS, 7, 7), (3, CHANNELS, 29, 31), (2, CHANNELS, 3, 2))


@pytest.mark.parametrize("sizes", IMAGES, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_images(sizes, layout, calls):
    trains(lambda: Net(lambda: nn.BatchNorm2d(CHANNELS)), shifted(*sizes, layout=layout))
    assert not calls


@pytest.mark.parametrize("norm, sizes", [
    (nn.BatchNorm1d, (300, CHANNELS)), (nn.BatchNorm1d, (5, CHANNELS, 90)), (nn.BatchNorm3d, (2, CHANNELS, 5, 9, 8))])
def test_rows_sequences_and_volumes(norm, sizes, calls):
    trains(lambda: Net(lambda: norm(CHANNELS)), shifted(*sizes))
    assert not calls


@pytest.mark.parametrize("options", [
    {"momentum": 0.3, "eps": 0.1}, {"track_running_stats": False}, {"affine": False}], ids=str)
def test_options(options, calls):
    trains(lambda: Net(lambda: nn.BatchNorm2d(CHANNELS, **options)), shifted(8, CHANNELS, 24, 24))
    assert not calls


class Convolutions(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.first, self.second = (nn.Conv2d(a, CHANNELS, 3, padding=1, bias=False) for a in (3, CHANNELS))
        self.norm, self.other = nn.BatchNorm2d(CHANNELS, momentum=momentum), nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return F.max_pool2d(F.relu(x + self.other(self.second(x))), 3, 2, 1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_between_convolutions_of_16_bits(layout, autocast, calls):
    def inputs(k):
        return [of(4, 3, 40, 36)(k)[0].detach().contiguous(memory_format=layout).requires_grad_()]

    trains(lambda: Convolutions().to(memory_format=layout), inputs, autocast=autocast)
    assert not any("batch_norm" in name for name in calls)


def test_a_mean_over_all_steps():
    """Its factor is a number of the device, which the program reads on each call."""
    torch.manual_seed(0)
    nets = [Convolutions(momentum=None).cuda()]
    nets.append(copy.deepcopy(nets[0]))
    calls = nets[0], preheat.compile(nets[1], options=NO_CACHE)
    for k in range(6):
        x = of(4, 3, 12, 12)(k)[0].detach()
        for net, call in zip(nets, calls):
            net.zero_grad()
            call(x).sum().backward()
        for mine, eager in zip(nets[1].buffers(), nets[0].buffers()):
            torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_statistics_are_written_once_whatever_runs_again(layout):
    """A norm of a norm, a backward of the backward, a small budget, a frozen one behind."""
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS)
            self.frozen = nn.BatchNorm2d(CHANNELS)

        def forward(self, x):
            return torch.tanh(self.frozen(self.norm(self.norm(self.conv(x)))))

    torch.manual_seed(0)
    nets = [Deep().cuda().to(memory_format=layout)]
    nets.append(copy.deepcopy(nets[0]))
    for net in nets:
        net.frozen.eval()
    calls = nets[0], preheat.compile(nets[1], options=NO_CACHE | {"memory_budget": 0.0})
    with no_fallback(), torch.backends.cudnn.flags(allow_tf32=False):
        for step in range(6):
            x = of(4, 3, 9, 9)(step)[0].detach()
            for net, call in zip(nets, calls):
                result = call(x)
                is_double = step % 2 == 1
                grads = torch.autograd.grad(
                    result, list(net.parameters()), torch.ones_like(result), create_graph=is_double)
                if is_double:
                    net.zero_grad()
                    sum(grad.square().sum() for grad in grads).backward()
            for mine, eager in zip(nets[1].buffers(), nets[0].buffers()):
                torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-4)
