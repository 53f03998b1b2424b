"""One of two processes that train under DistributedDataParallel: a compiled model in it, and it in one.

    python ddp.py RANK STORE [cuda]        prints "equal" if all gradients are plain DDP's

With "cuda" each process has a GPU of its own and speaks NCCL, else both are on the CPU and speak gloo.
"""

import copy
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import preheat

OPTIONS = {"cache": False}


def run_two(folder: Path, *kind: str) -> None:
    """Both processes, to the end. Raises AssertionError for one that does not find its gradients equal."""
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder / "store"), *kind],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)]
    for worker in workers:
        printed, errors = worker.communicate(timeout=120)
        assert "equal" in printed, errors


def main(rank: int, store: str, is_on_gpus: bool) -> None:
    device, settings = "cpu", {"bucket_cap_mb": 0.0001}
    if is_on_gpus:
        device, settings["device_ids"] = rank, [rank]
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if is_on_gpus else "gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
    inner, outer = copy.deepcopy(plain), copy.deepcopy(plain)
    wrapped = DDP(preheat.compile(outer, options=OPTIONS), **settings)
    holding = preheat.compile(DDP(inner, **settings), options=OPTIONS)
    reference = DDP(plain, device_ids=settings.get("device_ids"))
    for step in range(6):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
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
    print("equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["cuda"])
