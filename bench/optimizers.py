"""Steps of the optimizers that people train with: captures, first steps, a later step.

    python -m bench.optimizers                             all rows, as a table in Markdown
    python -m bench.optimizers --device cuda Adam "SGD,"   those whose names begin so, on a GPU

Over 200 parameters of 64 to 65536 elements, a learning rate that changes at each step (and a momentum or betas
where there are some). Captures: over 10 steps. The first two steps: time beyond eager's. A step: the least of 9
rounds of 5 steps in alternation. Times are the processor's on a CPU; on a GPU a clock's, until all is done.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import preheat

COUNT = 200
STEPS, ROUNDS = 10, 9

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


class Lion(torch.optim.Optimizer):
    """As people write one: signs of an average, a loop over parameters."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                average, (beta1, beta2) = state["exp_avg"], group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = average * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def sizes(count: int = COUNT) -> list[int]:
    return [int(64 * 1024 ** ((k / (count - 1)) ** 0.4)) for k in range(count)]


def parameters(count: int = COUNT, device: str = "cpu") -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(size, device=device)) for size in sizes(count)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


class Clipped:
    """An optimizer whose step clips the gradients before."""

    def __init__(self, params: list[torch.nn.Parameter], foreach: bool) -> None:
        self.params, self.foreach, self.inner = params, foreach, torch.optim.AdamW(params, foreach=True)
        self.param_groups = self.inner.param_groups

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=self.foreach)
        self.inner.step()


def rows() -> Iterator[tuple[str, Make]]:
    """Names, and what makes the optimizers."""
    o = torch.optim
    kinds: dict[str, tuple[type, dict[str, Any]]] = {
        "SGD": (o.SGD, {}),
        "SGD momentum": (o.SGD, {"momentum": 0.9}),
        "SGD nesterov": (o.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        "Adam": (o.Adam, {}),
        "AdamW": (o.AdamW, {}),
        "AdamW amsgrad": (o.AdamW, {"amsgrad": True}),
        "AdamW maximize": (o.AdamW, {"maximize": True}),
        "AdamW capturable": (o.AdamW, {"capturable": True}),
        "RAdam": (o.RAdam, {"lr": 1e-3}),
        "NAdam": (o.NAdam, {"lr": 1e-3}),
        "Adagrad": (o.Adagrad, {}),
        "RMSprop": (o.RMSprop, {"lr": 1e-3}),
        "RMSprop centered, momentum": (o.RMSprop, {"lr": 1e-3, "centered": True, "momentum": 0.9}),
        "Adamax": (o.Adamax, {"lr": 1e-3}),
        "Adadelta": (o.Adadelta, {}),
        "ASGD": (o.ASGD, {"lr": 1e-3}),
        "Rprop": (o.Rprop, {"lr": 1e-3}),
    }
    for name, (kind, given) in kinds.items():
        for way, chosen in (("foreach", {"foreach": True}), ("plain", {"foreach": False})):
            yield f"{name}, {way}", lambda params, kind=kind, given=given, chosen=chosen: kind(
                params, **{"lr": 0.01, **given, **chosen})
        if kind in (o.SGD, o.Adam, o.AdamW, o.Adagrad) and "capturable" not in given:
            yield f"{name}, fused", lambda params, kind=kind, given=given: kind(
                params, **{"lr": 0.01, **given, "fused": True})
    yield "Lion", lambda params: Lion(params)
    for foreach in (True, False):
        yield f"AdamW with a clip, foreach={foreach}", lambda params, foreach=foreach: Clipped(params, foreach)


def change(optimizer: torch.optim.Optimizer, k: int) -> None:
    """What a schedule does before step `k`."""
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 + k % 7) / 7
        if "betas" in group:
            group["betas"] = (0.9 + 0.001 * (k % 5), 0.999)
        if group.get("momentum"):
            group["momentum"] = 0.9 + 0.001 * (k % 5)


def measured(make: Make, device: str = "cpu", count: int = COUNT) -> dict[str, Any]:
    """The figures of one optimizer."""
    clock = time.process_time if device == "cpu" else _waited
    optimizers = make(parameters(count, device)), make(parameters(count, device))
    before = preheat.counters()["captures"]
    os.environ["PREHEAT_CACHE_DIR"] = tempfile.mkdtemp()  # of other rows there would be entries to look at
    steps = [optimizers[0].step, preheat.compile(optimizers[1].step)]
    spent = ([], [])
    for k in range(STEPS):
        for which in (0, 1):
            change(optimizers[which], k)
            began = clock()
            steps[which]()
            spent[which].append(clock() - began)
    least = [float("inf"), float("inf")]
    for k in range(ROUNDS):
        for which in (0, 1):
            began = clock()
            for inner in range(5):
                change(optimizers[which], 5 * k + inner)
                steps[which]()
            least[which] = min(least[which], (clock() - began) / 5)
    captures = preheat.counters()["captures"] - before
    differs = max(
        (a - b).abs().max().item() / max(1.0, b.abs().max().item()) for a, b in zip(*(
            itertools.chain.from_iterable(group["params"] for group in one.param_groups)
            for one in optimizers)))
    return {
        "captures": captures, "first": sum(spent[1][:2]) - sum(spent[0][:2]),
        "third": spent[1][2], "eager": least[0], "step": least[1], "differs": differs}


def _waited() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.optimizers")
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    preheat.compile(lambda x: x + 1)(torch.ones(2, device=asked.device))  # what is done once a process, or a machine
    print("| optimizer | captures | first two steps, s | a step, us | eager's, us | ratio | differs |")
    print("|---|---|---|---|---|---|---|")
    for name, make in rows():
        if name.startswith(tuple(asked.names)):
            try:
                found = measured(make, asked.device)
            except Exception as error:  # a row of its own
                print(f"| {name} | {type(error).__name__}: {error} |")
                continue
            print(
                f"| {name} | {found['captures']} | {found['first']:.2f} | {found['step'] * 1e6:.0f} | "
                f"{found['eager'] * 1e6:.0f} | {found['eager'] / found['step']:.2f} | {found['differs']:.1e} |",
                flush=True)


if __name__ == "__main__":
    main()
