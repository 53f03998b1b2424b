"""Random programs of views, arithmetic and in-place writes on tensors that may overlap.

A program takes three tensors; every call passes other values, and in every third program the
arguments also overlap otherwise from call to call (one tensor twice, a transpose of another,
windows of one memory, an expanded one). Results, arguments, aliasing and generators must be
eager's after every call. The source stands in the failure; seeds are fixed.
"""

import linecache
import random

import pytest
import torch

from same import Program, same_program

QUICK = 24
CALLS = 4

VIEWS = """
{a}.t() | {a}[1:] | {a}[:, ::2] | {a}[0] | {a}.view(-1) | {a}.reshape(-1) | {a}.unsqueeze(1)
{a}.transpose(0, -1) | {a}.narrow(0, 0, 1) | {a}.expand(2, *{a}.shape) | {a}.squeeze()
{a}.diagonal() | {a}.contiguous() | {a}.unfold(0, 2, 1) | {a}.as_strided((2, 2), (1, 2))
{a}.chunk(2)[0] | {a}.flip(0) | {a}.unbind(0)[-1] | {a}.movedim(0, -1) | {a}.detach()
"""
VALUES = """
{a} + 1 | {a} * {b} | {a} - {b} | {a}.sum(0) | {a}.softmax(-1) | {a}.cumsum(0) | {a}.clone()
{a}.relu() | {a}.mean() | {a}.tanh() | {a}.roll(1, 0) | {a}.tril() | {a}.std() | {a}.var(0)
{a}.norm() | {a}.repeat(2, 1) | {a}.topk(1, 0)[0] | {a}.logsumexp(-1) | {a}.sort(0)[0]
{a}.argsort(0).float() | {a}.amax(-1, keepdim=True) | torch.stack([{a}, {a}])
F.dropout({a}, 0.5) | {a} + torch.rand_like({a}) | F.pad({a}, (1, 1)) | {a}.round(decimals=1)
{a}.masked_fill({a} > 0.5, 0.0) | {a} @ {a}.transpose(-1, -2) | torch.linalg.qr({a})[1]
{a}.clamp({b}.min(), 1.0) | torch.where({a} > 0, {a}, {b}) | {a}.to(torch.bfloat16).float()
{a}.index_select(0, torch.tensor([0, 0])) | {a}.gather(0, {a}.long() * 0)
F.layer_norm({a}, {a}.shape[-1:]) | torch.cat([{a}.reshape(-1), {b}.reshape(-1)])
"""
WRITES = """
{a}.add_(1) | {a}.mul_({b}) | {a}.copy_({b}) | {a}.zero_() | {a}.fill_(0.5) | {a}.relu_()
{a}[0] = 1.5 | {a}[..., -1] = {b}[..., 0] | {a}.clamp_(-1, 1) | {a}.uniform_() | {a}.t().mul_(2)
{a}.view(-1)[1:3].neg_() | {a}.lerp_({b}, 0.3) | {a}.transpose_(0, 1) | {a}.unsqueeze_(0)
{a}.sub_({b}, alpha=2) | torch.add({a}, 1, out={b}) | {a}.masked_fill_({a} < 0, 3.0)
{a}.index_fill_(0, torch.tensor([0]), 2.0) | {a}.scatter_(0, {a}.long() * 0, {b})
"""


def statements(table):
    """The entries of a table."""
    return [part.strip() for line in table.strip().splitlines() for part in line.split(" | ")]


def source(choice):
    names, lines = ["x", "y", "z"], []
    for number in range(choice.randint(3, 9)):
        a, b = choice.choice(names), choice.choice(names)
        kind = choice.choices((VIEWS, VALUES, WRITES), (30, 35, 35))[0]
        text = choice.choice(statements(kind)).format(a=a, b=b)
        if kind is not WRITES:
            names.append(f"v{number}")
            text = f"v{number} = {text}"
        lines.append(f"    {text}\n")
    results = choice.sample(names, choice.randint(1, min(len(names), 4)))
    return "def program(x, y, z):\n" + "".join(lines) + f"    return {', '.join(results)},\n"


def arguments(layout, seed):
    """Three tensors in layout 0-7 with values of their own for each seed."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(8, 6, generator=generator)
    line = torch.randn(24, generator=generator)
    x, y, z = (torch.randn(4, 4, generator=generator) for _ in range(3))
    return {
        0: (memory[:4, :4], memory[2:6, 1:5], z),
        1: (x, x, z),
        2: (x.t(), y, z),
        3: (x, y, z[:, :1].clone().expand(4, 4)),
        4: (memory[::2, :4], y, memory[::2, :4]),
        5: (x, x.t(), z),
        6: (line[:16].view(4, 4), line[4:20].view(4, 4), z),  # but for the overlap, as 7
    }.get(layout, (x, y, z))


def check(seed, backend="preheat", layouts=()):
    choice = random.Random(seed)
    text, file = source(choice), f"<tensor fuzz {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"torch": torch, "F": torch.nn.functional}
    exec(compile(text, file, "exec"), space)
    if not layouts:
        layouts = [choice.randint(0, 7)] * CALLS
    if seed % 3 == 0 and len(set(layouts)) == 1:
        layouts = [choice.randint(0, 7) for _ in range(CALLS)]

    def put(number):
        def change(program):
            program.args = arguments(layouts[number], seed + number)

        return change

    def make():
        between = {number: put(number) for number in range(1, CALLS)}
        return Program(space["program"], arguments(layouts[0], seed), between=between)

    try:
        same_program(make, calls=CALLS, settings={"backend": backend})
    except AssertionError as difference:
        raise AssertionError(f"{difference}\n{text}layouts {layouts}") from difference


@pytest.mark.parametrize("seed", range(QUICK))
def test_random_programs(seed):
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs(block):
    for seed in range(QUICK + 50 * block, QUICK + 50 * (block + 1)):
        check(seed)
