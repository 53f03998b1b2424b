"""What a first call does, and in which order: what it costs is told by counts."""

import torch

import preheat
from preheat import differentiate, dispatch
from preheat.capture.capture import capture
from preheat.differentiate import Lesson
from preheat.ir.plan import Image, Target
from preheat.schedule.schedule import schedule
from preheat.transform.pipeline import HALF
from tests import processes
from schedule.graphs import on_gpu

TARGET = Target("cuda", "sm_90")
HOOKED = """
import sys
import torch
import preheat
asked = []
sys.addaudithook(lambda event, args: asked.append(event))
model = torch.nn.Sequential(*(layer for _ in range(8) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())))
compiled = preheat.compile(model, options={"cache": False})
for _ in range(3):
    compiled(torch.ones(4, 8)).sum().backward()
print(asked.count("builtins.id"))
"""


def test_audit_hooks_are_asked_little():
    """Each `id` tells them; three steps of eight layers called it 17 thousand times."""
    assert int(processes.printed("-c", HOOKED)) < 8000


def test_steps_that_are_recorded_need_no_native_checker(monkeypatch):
    made = []
    monkeypatch.setattr(dispatch, "runtime_image", lambda disk: made.append(disk))
    weight = torch.ones(8, requires_grad=True)
    compiled = preheat.compile(lambda x: (x * weight).sum(), options={"cache": False})
    counts = []
    for _ in range(3):
        compiled(torch.ones(4, 8)).backward()
        counts.append(len(made))
    assert counts[:2] == [0, 0] and counts[2] > 0
    assert torch.equal(weight.grad, torch.full((8,), 12.0))


def _planned(monkeypatch, program, *inputs):
    """How many products each image of a training step for a GPU has, in the order in which they are begun."""
    found, lowered = [], differentiate._lowered

    def moved(graph, passes, is_for_many=False):
        made = lowered(graph, passes, is_for_many)
        return on_gpu(made) if passes is HALF else made

    def begun(kernels, target, asked):
        found.append(sum(kernel.name.startswith("product") for kernel in kernels))
        return lambda: Image(b"", (), target)

    monkeypatch.setattr(differentiate, "target_of", lambda graph: TARGET)
    monkeypatch.setattr(differentiate, "_lowered", moved)
    monkeypatch.setattr(differentiate, "begin_image", begun)
    lesson = Lesson.of(capture(program, inputs, {}, limits=None).captured.trace.nodes[0].body)
    source = lesson.run(list(inputs))
    source.backward(0, [torch.ones(())], [], False)
    lesson.compiled("f")
    return found


def test_a_half_with_products_of_its_own_is_planned_first(monkeypatch):
    """They take longest to compile; without any, what a backward computes does."""
    x, w = torch.ones(64, 64), torch.ones(64, 64, requires_grad=True)
    assert _planned(monkeypatch, lambda x, w: torch.softmax(x * w, 1).square().sum(), x, w) == [0, 0]
    both = torch.ones(64, 64, requires_grad=True), w
    assert _planned(monkeypatch, lambda x, w: (x @ w).tanh().sum(), *both) == [1, 2]
