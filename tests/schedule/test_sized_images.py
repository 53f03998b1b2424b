"""Images with channels last whose sizes change: one plan for a GPU, in inference and in training, of the layout that
eager has at every size."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from schedule.graphs import on_gpu
from torch import nn

from preheat.capture.capture import capture
from preheat.generate.variants import sources_of
from preheat.ir.hinted import Book
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Target
from preheat.ir.scalar import evaluate
from preheat.ir.sized import at, with_hinted_sizes
from preheat.schedule.products import small_products
from preheat.schedule.schedule import schedule
from preheat.templates import with_other_hints
from preheat.transform.pipeline import lower

GPU = Target("cuda", "sm_90")
CONV, NORM, GROUPS = nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8).eval(), nn.GroupNorm(2, 8)
MODELS = (CONV, NORM, GROUPS)
SIZES = ((2, 9, 11), (3, 8, 8), (5, 16, 7), (1, 9, 12), (4, 33, 5))


def block(x):
    y = F.silu(NORM(CONV(x)))
    y = torch.cat([F.interpolate(F.max_pool2d(y, 3, 2, 1), y.shape[2:]), y], 1)
    return F.pad(y, (1, 0, 2, 1)), F.adaptive_avg_pool2d(y, 1).flatten(1)


def normed(x):
    return GROUPS(torch.cat([x, x.relu()], 1)) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", [block, normed])
def test_one_plan_for_images_with_channels_last(program, dtype):
    for model in MODELS:
        model.to(dtype)
    try:
        with torch.no_grad():
            _check(program, dtype)
    finally:
        for model in MODELS:
            model.float()


def _images(batch, height, width, dtype):
    return torch.randn(batch, 4, height, width, dtype=dtype).to(memory_format=torch.channels_last)


def _check(program, dtype):
    x = _images(6, 14, 10, dtype)
    trace = capture(program, (x,), {}, limits=None, dynamic=frozenset(
        [f"arg0.shape[{axis}]" for axis in (0, 2, 3)])).captured.trace
    body = with_other_hints(trace.nodes[0].body, trace)
    names, book = tuple(name for name, _ in body.symbols), Book()
    assert len(names) == 3
    core = on_gpu(lower(with_hinted_sizes(body, names, body.hints, book), is_for_many=True))
    plan = schedule(core, GPU, small_products(core))
    assert all(sources_of(kernel, GPU) for kernel in plan.kernels)
    plan = decode(encode(replace(plan, symbols=names, conditions=book.conditions)))
    served = 0
    for size in SIZES:
        x = _images(*size, dtype)
        by_name = {name: x.shape[int(trace.sources[int(name[1:])].key)] for name in names}
        if not all(evaluate(condition, by_name) for condition in plan.conditions):
            continue
        served += 1
        expected = program(x)
        for output, theirs in zip(at(plan, by_name).outputs, expected if isinstance(expected, tuple) else (expected,)):
            assert output.type.sizes == theirs.shape
            pairs = zip(output.type.strides, theirs.stride(), theirs.shape)
            assert all(a == b for a, b, n in pairs if n > 1)
    assert served >= 3, plan.conditions
