"""Differentiable calls hold nothing behind them, serve threads, and hand gradients over as DDP asks."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import preheat
from tests.training.place import DEVICE

NO_CACHE = {"cache": False}


def two_results(x, w):
    h = torch.tanh(x @ w)
    return h, (h * w).sum()


def written(x, w):
    x.mul_(w)
    return x, (x * 2).sum()


@pytest.mark.parametrize("fn", [two_results, written])
@pytest.mark.parametrize("with_backward", [True, False])
def test_a_call_dies_with_its_results(fn, with_backward):
    compiled, w = preheat.compile(fn, options=NO_CACHE), torch.randn(4, 4, device=DEVICE, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        for number in range(7):
            x = torch.randn(4, 4, device=DEVICE, requires_grad=True) * 1
            results = compiled(x, w)
            if number < 3 or with_backward:
                results[1].backward()
            alive = [weakref.ref(result) for result in (*results, x)]
            del results, x
            assert [ref() for ref in alive] == [None] * 3, number
    finally:
        gc.enable()


def test_threads_that_train_at_once():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(DEVICE)
    compiled, wrong = preheat.compile(net, options=NO_CACHE), []
    parameters = list(net.parameters())

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(5, 8, generator=generator).to(DEVICE)
            expected = torch.autograd.grad(net(x).pow(2).sum(), parameters)
            found = torch.autograd.grad(compiled(x).pow(2).sum(), parameters)
            if not all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(expected, found)):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


PROGRAM = """
import sys, torch, preheat
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
import copy
inner, outer = copy.deepcopy(plain), copy.deepcopy(plain)
few = {"bucket_cap_mb": 0.0001}
wrapped = DDP(preheat.compile(outer, options={"cache": False}), **few)   # a compiled model inside
holding = preheat.compile(DDP(inner, **few), options={"cache": False})   # DDP inside a compiled model
reference = DDP(plain)
for step in range(6):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank))
    grads = []
    for net, model in ((reference, plain), (wrapped, outer), (holding, inner)):
        model.zero_grad()
        net(x).pow(2).sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for other in grads[1:]:
        for a, b in zip(grads[0], other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
for net in wrapped, holding:  # gradients are sent while others are computed
    result = net(x)  # its node is one as long as it is there
    node, names = result.grad_fn, []
    while node is not None:
        names.append(type(node).__name__)
        node = next((n for n, _ in node.next_functions[::-1] if n is not None), None)
    assert "LaterBackward" in names, names
print("equal")
"""


def test_ddp_on_two_processes(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        for rank in range(2)]
    for worker in workers:
        printed, errors = worker.communicate(timeout=120)
        assert "equal" in printed, errors
