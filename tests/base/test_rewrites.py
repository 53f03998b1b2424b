"""Rewrites: the text for a line, and that the program so written gives the same without a break."""

import re
import textwrap

import numpy
import pytest
import torch

import preheat
from preheat.base.rewrites import hint_for, rewrite, spots
from same import same

BRANCH, NUMBER, SHAPE = "data_dependent_branch", "data_dependent_number", "data_dependent_shape"

SAID = re.compile(r"  # (both sides|the mask has|raises Runtime).*$")  # said after one line

# Program (the line that ends in #< broke), reason, the rewrite. Each is run for tensors of signs
# and sizes that take every way: same results, and no break.
RUN = [
    ("""
     def f(x):
         mask = x > 0
         if mask.any(): x = x * 2  #<
         return x
     """, BRANCH, "x = torch.where(mask.any(), x * 2, x)"),
    ("""
     def f(x):
         y = x.abs()
         if y.sum().item() > 3 and not (x < 0).all():  #<
             y = y + 1
             z = y * 2
         else:
             z = -y
         return y, z
     """, BRANCH,
     "y, z = (  # both sides are computed\n"
     "    torch.where((y.sum() > 3) & ~(x < 0).all(), y + 1, y),\n"
     "    torch.where((y.sum() > 3) & ~(x < 0).all(), (y + 1) * 2, -y),\n)"),
    ("""
     def f(x):
         if x.max() > 1:  #<
             return x / x.max()
         return x
     """, BRANCH, "return torch.where(x.max() > 1, x / x.max(), x)"),
    ("""
     def f(x):
         low = x.min() < 0
         if low:  #<
             return x - x.min(), x.sum()
         else:
             return x, x.sum()
     """, BRANCH, "return torch.where(low, x - x.min(), x), x.sum()"),
    ("""
     def f(x):
         scale = x
         if x.sum() > 2:  #<
             scale = x * 2
         elif x.sum() > 0:
             scale = x * 3
         return scale
     """, BRANCH,
     "scale = torch.where(x.sum() > 2, x * 2, torch.where(x.sum() > 0, x * 3, scale))"),
    ("""
     def f(x):
         if 0 < x.mean() < 1 or torch.equal(x, -x):  #<
             x = x + 1
         return x
     """, BRANCH,
     "x = torch.where((0 < x.mean()) & (x.mean() < 1) | (x == -x).all(), x + 1, x)"),
    ("""
     def f(x):
         r = x.abs().max()
         while r > 0.01:  #<
             half = x / 2
             x = half
             r = half.abs().max().item()
         return x
     """, BRANCH,
     "for _ in range(100):  # a bound of your choice; what is past the end changes nothing\n"
     "    go = r > 0.01\n    half = x / 2\n    x = torch.where(go, half, x)\n"
     "    r = torch.where(go, half.abs().max(), r)"),
    ("""
     def f(x):
         assert torch.isfinite(x).all(), "not finite"  #<
         return x * 2
     """, BRANCH, "torch._assert_async(torch.isfinite(x).all(), 'not finite')"),
    ("""
     def f(x):
         if not torch.isfinite(x).all():  #<
             raise ValueError("not finite")
         return x * 2
     """, BRANCH, "torch._assert_async(torch.isfinite(x).all(), 'not finite')"),
    ("""
     def f(x):
         scale = x.abs().max().item() + 1  #<
         return x / scale - scale
     """, NUMBER, "scale = x.abs().max() + 1"),
    ("""
     def f(x):
         low = float(x.min())  #<
         return torch.clamp(x * 2, min=low) * low
     """, NUMBER, "low = x.min()"),
    ("""
     def f(x):
         return x * (1 + x.sum().item())  #<
     """, NUMBER, "return x * (1 + x.sum())"),
    ("""
     def f(x):
         return x[x > 0].sum()  #<
     """, SHAPE, "return torch.where(x > 0, x, 0).sum()"),
    ("""
     def f(x):
         keep = x == x
         return torch.masked_select(x, keep).mean(), torch.max(x[keep])  #<
     """, SHAPE,
     "return (torch.where(keep, x, 0).sum() / keep.sum(), torch.where(keep, x, -torch.inf).max())"),
    ("""
     def f(x):
         return x * len((x > 0).nonzero())  #<
     """, SHAPE, "return x * (x > 0).count_nonzero()"),
    ("""
     def f(x):
         hits = torch.nonzero(x > 0).shape[0]  #<
         return x * hits
     """, SHAPE, "hits = (x > 0).count_nonzero()"),
    ("""
     def f(x):
         y = torch.from_numpy(np.exp(np.clip(x.detach().numpy(), -1, 1)))  #<
         return y + 1
     """, "tensor_escape", "y = torch.exp(torch.clamp(x.detach(), -1, 1))"),
    ("""
     def f(x):
         y = x + 1
         y.unsqueeze_(0)  #<
         return y
     """, "metadata_write", "y = y.unsqueeze(0)"),
]

# Rewrites that leave something to the caller, or change what they say they change: the text alone.
TOLD = [
    ("def f(x):\n    for i in range(x.sum().item()):  #<\n        x = x + 1\n    return x",
     NUMBER, "for i in range(steps):  # an argument: the caller passes steps=x.sum().item()"),
    ("def f(x):\n    s = x.sum()\n    print('s', s.item(), f'{x.max():.2f}')  #<\n    return x",
     NUMBER,
     "return ..., s, x.max()  # and in the caller: print('s', s.item(), f'{x.max():.2f}')"),
    ("def f(h):\n    print(round(h.sum().item(), 3), f'{math.sqrt(h[0])}', h.max().item() / 2)  #<",
     NUMBER,
     "return ..., h.sum(), math.sqrt(h[0]), h.max() / 2"
     "  # and in the caller: print(round(h.sum().item(), 3), f'{math.sqrt(h[0])}', h.max().item() / 2)"),
    ("def f(h):\n    print(h.tolist(), max(h[1:].tolist()), int(h.max()))  #<", "tensor_escape",
     "return ..., h, h[1:], h.max().long()"
     "  # and in the caller: print(h.tolist(), max(h[1:].tolist()), int(h.max()))"),
    ("def f(x):\n    logger.info('step')  #<\n    return x",
     "host_call", "# before or after the call, not in it: logger.info('step')"),
    ("def f(x):\n    y = x[x > 0]  #<\n    return y",
     SHAPE, "y = torch.where(x > 0, x, 0)  # keeps its size: zero where the mask is False"),
    ("def f(x, m, table):\n    return x[m & (x > 0)].sum() + table[i]  #<", SHAPE,
     "return torch.where(m & (x > 0), x, 0).sum() + table[i]"
     "  # the mask has the sizes of what it selects from"),
    ("def f(x):\n    return x.nonzero()  #<", SHAPE,
     "return torch.nonzero_static(x, size=128)"
     "  # a size that is enough; the rest is filled with -1"),
    ("def f(x):\n    return x, x.sum().tolist()  #<", "tensor_escape",
     "return (x, x.sum())  # the caller converts it: .tolist()"),
    ("def f(x):\n    return x * random.random()  #<", "host_call",
     "return x * torch.rand(())  # draws from torch's generator"),
    ("def f(x, now):\n    start = time.time()  #<\n    return x * start", "host_call",
     "start = now_given  # an argument: the caller passes now_given=time.time()"),
    ("class M:\n    def f(self, x):\n        self.calls += 1  #<\n        return x",
     "write_outside",
     "self.calls.add_(1)  # in __init__: self.register_buffer('calls', torch.tensor(0))"),
    ("def f(x):\n    seen.append(float(x.sum()))  #<\n    return x", NUMBER,
     "seen.append(x.sum())  # a tensor: make it a number where it is read"),
    ("def f(x):\n    seen.append(x * 2)  #<\n    return x", "write_outside",
     "return ..., x * 2  # and in the caller: seen.append(x * 2)"),
    ("@wrap\ndef f(x):  #<\n    return (x * i for i in range(3))", "no_recipe",
     "return [x * i for i in range(3)]"),
]

# What is not a choice between values, or would not be the same: the general hint stands.
UNKNOWN = [
    ("def f(x):\n    if x.any():  #<\n        print('some')\n    return x", BRANCH),
    ("def f(x):\n    if x.any():  #<\n        x.mul_(2)\n    return x", BRANCH),
    ("def f(x):\n    if x.any():  #<\n        y = x\n    return y", BRANCH),
    ("def f(x):\n    if x.any():  #<\n        return 'some'\n    return x", BRANCH),
    ("def f(x, a):\n    if x.any():  #<\n        a = True\n    return a", BRANCH),
    ("def f(x, a):\n    if x.any():  #<\n        a = a + (x,)\n    return a", BRANCH),
    ("def f(x, y):\n    if y is not None and x.any():  #<\n        x += 1\n    return x", BRANCH),
    ("def f(x):\n    while x.any():  #<\n        if x.sum() > 3: break\n        x = x - 1", BRANCH),
    ("def f(x):\n    n = x.sum().item()  #<\n    return [0] * 3, range(n), x * n", NUMBER),
    ("def f(x):\n    n = int(x.sum())  #<\n    return x[n + 1]", NUMBER),
    ("def f(x):\n    n = x.sum().item()  #<\n    return n", NUMBER),
    ("def f(x):\n    n = round(x.sum().item(), 3)  #<\n    return x * n", NUMBER),
    ("def f(x):\n    return x * math.pow(x.sum().item(), 2)  #<", NUMBER),
    ("def f(x):\n    return x * pow(x.sum().item(), 2)  #<", NUMBER),
    ("def f(x):\n    return sorted([3, 1], key=lambda n: n * x.sum().item())  #<", NUMBER),
    ("def f(x):\n    return torch.unique(x)  #<", SHAPE),
    ("def f(x, i):\n    return x[-1] + x[i + 1] + x['a'] + x[:, i]  #<", SHAPE),
    ("def f(x, i, j):\n    return x[i] + x[j]  #<", SHAPE),
    ("def f(x):\n    y = np.fft.fft(x.numpy())  #<\n    return y", "tensor_escape"),
    ("def f(x):\n    return x +  #<", BRANCH),
    ("def f(x):\n    if x.any():  #<\n        x = x + 1\n    return x", "training"),
]


def parts(program: str) -> tuple[str, int]:
    """The program, and the number of its marked line."""
    text = textwrap.dedent(program).strip("\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if row.endswith("#<"))
    return text.replace("  #<", ""), line


def rewritten(text: str, line: int, new: str) -> str:
    node = spots(text, line)[-1].statement
    rows = text.splitlines()
    block = textwrap.indent(new, " " * node.col_offset)
    return "\n".join([*rows[:node.lineno - 1], block, *rows[node.end_lineno:]])


def function(text: str):
    space = {"torch": torch, "np": numpy}
    exec(compile(text, "rewritten", "exec"), space)
    return space["f"]


@pytest.mark.parametrize("number", range(len(RUN)))
def test_the_rewritten_program_is_the_same_and_whole(number):
    program, reason, expected = RUN[number]
    text, line = parts(program)
    found = rewrite(text, line, reason)
    assert SAID.sub("", found) == expected
    old, new = function(text), function(rewritten(text, line, found))
    for values in ([-1.0, 0.5, 2.0, 0.25], [-3.0, -2.0, -1.0, -0.5], [0.0] * 4, [0.125] * 4):
        x = torch.tensor(values)
        with torch.no_grad():
            torch.testing.assert_close(new(x.clone()), old(x.clone()), equal_nan=True)
    with torch.no_grad():
        explained = preheat.explain(new)(x.clone())
    assert explained.error is None and explained.break_count == 0, str(explained)


def test_a_check_still_raises():
    text, line = parts(RUN[7][0])
    same(function(rewritten(text, line, rewrite(text, line, BRANCH))), torch.ones(2))
    with pytest.raises(RuntimeError, match="not finite"), torch.no_grad():
        function(rewritten(text, line, rewrite(text, line, BRANCH)))(torch.tensor([torch.nan]))


@pytest.mark.parametrize("program, reason, expected", TOLD)
def test_what_is_left_to_the_caller_is_said(program, reason, expected):
    assert rewrite(*parts(program), reason) == expected


@pytest.mark.parametrize("program, reason", UNKNOWN)
def test_what_is_not_known_gets_no_rewrite(program, reason):
    assert rewrite(*parts(program), reason) == ""


def test_hints():
    text, line = parts(RUN[0][0])
    assert hint_for(text, line, BRANCH, "general") == (
        "instead: x = torch.where(mask.any(), x * 2, x)  # both sides are computed")
    assert hint_for(text, line, "training", "general") == "general"
    assert hint_for(*parts(RUN[1][0]), BRANCH, "").startswith("instead:\n    y, z = (")


def test_places():
    """Nested functions, decorators, many lines, strings that look like code, lines that are not."""
    text = textwrap.dedent('''
        """def fake(x):
        """
        class Model:
            @property
            def gate(self): return 1

            def forward(self, x):
                def inner(y):
                    """
            def not_a_function():
                    """
                    if (
                        y.any()
                    ):
                        y = y + self.gate
                    return y
                return inner(x)

        g = lambda x: x[x > 0].sum()
    ''').lstrip("\n")
    rows = text.splitlines()
    for row in ("if (", "y.any()"):
        line = next(n for n, found in enumerate(rows, 1) if found.strip() == row)
        assert rewrite(text, line, BRANCH).startswith("y = torch.where(y.any(), y + self.gate, y)")
    assert "lambda x: torch.where(x > 0, x, 0).sum()" in rewrite(text, len(rows), SHAPE)
    for line in (-1, 0, 1, len(rows) + 5):
        assert rewrite(text, line, BRANCH) == ""
    assert rewrite("", 1, BRANCH) == ""


ONE_LINE = "def f(x):\n    if x.sum() > 0: x = -x; print(x.shape)\n    a = x.sum().item(); b = x.max().item()\n    return x * a + b"


@pytest.mark.parametrize("line, reason, at, expected", [
    (3, NUMBER, "x.sum().item()", "a = x.sum()"),
    (3, NUMBER, "x.max().item()", "b = x.max()"),
    (3, NUMBER, "", ""),
    (2, "host_call", "print", "return ..., x.shape  # and in the caller: print(x.shape)"),
    (2, "host_call", "x.sum() > 0", ""),
])
def test_several_statements_on_one_line_are_told_apart(line, reason, at, expected):
    column = ONE_LINE.splitlines()[line - 1].index(at) if at else -1
    assert rewrite(ONE_LINE, line, reason, column) == expected


def test_explanations_know_which_statement_of_a_line_breaks():
    def f(x):
        é = "ä"; a = x.sum().item(); b = x.max().item()  # noqa: E702
        return x * a + b, é

    with torch.no_grad():
        breaks = preheat.explain(f)(torch.ones(3)).breaks
    assert [row.hint for row in breaks] == ["instead: a = x.sum()", "instead: b = x.max()"]


@pytest.mark.parametrize("line", [
    "opt = torch.optim.AdamW(net.parameters(), lr=0.1)", "opt = SGD(net.parameters(), 0.1)",
    "plan = optim.lr_scheduler.StepLR(opt, 3)", "scaler = torch.amp.GradScaler()",
])
def test_what_keeps_state_is_made_outside(line):
    text = f"def f(net, opt):\n    {line}\n    return net"
    assert rewrite(text, 2, "host_call") == f"# once, outside the compiled function, which then only uses it: {line}"


def test_a_step_that_makes_its_optimizer_is_told_where_to_make_it():
    net = torch.nn.Linear(3, 2)

    def step(x):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net(x).sum().backward()
        opt.step()

    breaks = preheat.explain(step)(torch.ones(4, 3)).breaks
    hints = [row.hint for row in breaks if "SGD" in row.code]
    assert hints and all("# once, outside the compiled function" in hint for hint in hints)
    assert all("SGD(net.parameters()" in hint for hint in hints)
