"""Kernels whose programs wait for each other: how they are launched, how many programs, and what runs without room."""

import contextlib
import ctypes
from types import SimpleNamespace

import pytest
import torch

from fake_cuda import FakeCuda
from machines import Machine, kernels_only, numbers
from preheat.base.events import bus
from preheat.ir.plan import Binary, Image, Target
from preheat.run import gpu
from preheat.run.gpu import load_gpu
from preheat.run.replays import CALLS_BEFORE_GRAPH

ALONE = Binary(b"", "alone", 64, 128, 0, 2)
UNITS = 132


class Device:
    """A driver that knows how many programs run at once."""

    def __init__(self, count, is_possible=1):
        self.count, self.facts, self.log = count, {16: UNITS, 95: is_possible}, []

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out, function, threads, shared):
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out, index):
        return 0

    def cuDeviceGetAttribute(self, out, which, device):
        out._obj.value = self.facts[which.value]
        return 0

    def __getattr__(self, name):
        return lambda *arguments: self.log.append((name, len(arguments))) or 0


@pytest.fixture
def loaded(monkeypatch):
    """The image of a kernel that waits and of its second binary, on a `Device`."""
    monkeypatch.setattr(gpu, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(gpu, "bind_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(gpu, "_loaded", lambda binary: (ctypes.c_void_p(), 7 if binary.waiting else 8))

    def load(device, waiting, programs):
        monkeypatch.setattr(gpu, "driver", lambda: device)
        binaries = (Binary(b"", "together", programs, 128, 1 << 15, 2, waiting=waiting, least_groups=3), ALONE)
        return load_gpu(Image(b"", (("f", 0), ("f", 1)), Target("cuda", "sm_90"), binaries), "cuda:0")

    return load


@pytest.mark.parametrize("count, waiting, programs, expected", [
    (5, 128, 8192, 640), (3, 128, 8192, 384), (5, 16, 64, 64), (1, 32, 8192, 128)])
def test_as_many_groups_as_find_room(loaded, count, waiting, programs, expected):
    launch = loaded(Device(count), waiting, programs).launch("f")
    assert (launch.function, launch.programs, launch.is_cooperative) == (7, expected, True)


@pytest.mark.parametrize("device", [Device(2), Device(0), Device(5, is_possible=0)])
def test_without_room_the_second_binary_runs_and_that_is_told(loaded, device):
    told = []
    stop = bus.subscribe(told.append, {"tune"})
    launch = loaded(device, 128, 8192).launch("f")
    stop()
    assert (launch.function, launch.programs, launch.is_cooperative) == (8, 64, False)
    assert "programs of f wait for nobody" in told[0].data["choice"]


def test_a_launch_from_python(loaded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=5))
    for device, name in ((Device(5), "cuLaunchCooperativeKernel"), (Device(2), "cuLaunchKernel")):
        gpu.run(loaded(device, 128, 8192).launch("f"), [])
        assert device.log == [(name, 10 if name.endswith("eKernel") else 11)]


def test_a_launch_by_the_driver(monkeypatch):
    """Direct calls say that all programs run at once; a recorded graph keeps what was captured."""
    plain = FakeCuda.kernel
    monkeypatch.setattr(FakeCuda, "kernel", lambda self, name, function, count: plain(
        self, name, function, count, is_cooperative=name == "double"))
    machine = Machine(monkeypatch, kernels_only())
    for k in range(CALLS_BEFORE_GRAPH + 2):
        x, y = numbers(k), numbers(k + 100)
        total = x + y
        log, (twice, whole) = machine.launched(x, y)
        assert log == (["graph"] if k >= CALLS_BEFORE_GRAPH else ["add", "together", "double", "bump"])
        assert torch.equal(whole, total) and torch.equal(twice, total * 2)
