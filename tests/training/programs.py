"""Random differentiable programs, and what is done with their results.

    program = Program(seed)
    program.text           def f(x, y, w, b, s): ...     views, in-place writes, no_grad, prints, results
    program.steps          which results are run backward, with which tangents, hooks and inputs
    Program(seed, has_regions=True)       parts of it, with draws of random numbers, are checkpoints

Everything follows from the seed, so that eager and compiled run the same. Shapes are square and
small: every value can meet every other, and gradients stay of order one.
"""

import random
import re
from random import Random
from dataclasses import dataclass, field

ROWS, COLUMNS = 3, 3
INPUTS = ("x", "y", "w", "b", "s")  # data, data that requires grad, weight, bias, running statistic

_POINTWISE = (
    "torch.tanh({a})", "{a} * {b}", "{a} + {b}", "{a} - 0.5 * {b}", "torch.sigmoid({a})",
    "torch.relu({a})", "{a}.sin()", "torch.where({a} > 0, {a}, {b})", "{a} * 0.5", "{a}.clamp(-1, 1)",
    "torch.nn.functional.gelu({a})", "{a}.abs() + 0.1", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})",
)
_MIXING = (
    "({a} @ {b}) / 3", "torch.nn.functional.linear({a}, w, bias[0]) / 2", "{a}.softmax(-1)",
    "torch.nn.functional.layer_norm({a}, (3,), weight=bias[1])", "{a}.cumsum(0) / 2",
    "{a}.mean(0, keepdim=True).expand(3, 3)", "({a} * {b}).sum(1, keepdim=True) + {a}",
    "torch.cat([{a}[:1], {b}[1:]])", "torch.stack([{a}[0], {b}[1], {a}[2]])",
    "torch.einsum('ij,jk->ik', {a}, {b}) / 3", "{a}[torch.tensor([2, 0, 0])]",
    "{a}.index_select(1, torch.tensor([1, 1, 2]))", "{a}.norm() * {b}",
)
_VIEWS = (
    "{a}.t()", "{a}.view(9).view(3, 3)", "{a}[:]", "{a}.transpose(0, 1)", "{a}.reshape(3, 3)",
    "{a}[0:1].expand(3, 3)", "{a}.unsqueeze(0)[0]", "{a}.chunk(3)[1].expand(3, 3)", "{a}.narrow(0, 0, 3)",
    "{a}.diagonal().unsqueeze(0).expand(3, 3)", "{a}.detach()", "{a}.flip(0)", "{a}.contiguous()",
)
_WRITES = (
    "{a}.mul_({b})", "{a}.add_({b})", "{a}[0] = {b}[1]", "{a}[:, 1] = 0.25", "{a}[1:] *= 0.5",
    "{a}.copy_({b})", "{a}.t()[0] += {b}[0]", "{a}.tanh_()", "{a}.zero_()", "{a}.masked_fill_({b} > 0.5, 0.1)",
    "{a}.view(9)[2:5].mul_(2)", "{a}.detach().add_(0.5)", "torch.add({b}, 1, out={a}.detach())",
    "{a}.clamp_(-1, 1)", "{a}.diagonal().fill_(0.3)",
)
_QUIET = (
    "s.mul_(0.9).add_({a}.detach().mean(0), alpha=0.1)", "{a}.mul_(0.5)", "{a}.add_(1)",
    "q{n} = {a} * {b}", "s.add_(1)", "{a}[0] = 0.2", "w.mul_(0.9)",
)
# torch crashes in hooks on a view of a leaf that was written to, unless its grad_fn is looked at
_OUTSIDE = (
    "print('seen', round(float({a}.detach().sum()), 5))", "log.append(('mean', {a}.detach().mean().item()))",
    "({a}.grad_fn, {a}.register_hook(hook('inner {n}'))) if {a}.requires_grad else None",
    "{a} = double({a})", "{a} = {a} * 2 if {a}.sum() > 0 else {a} - 1",
    "({a}.grad_fn, {a}.retain_grad()) if {a}.requires_grad else None",
)


_DRAWS = ("torch.nn.functional.dropout({a}, 0.4)", "{a} * torch.rand_like({a})", "{a} * torch.rand(())")


def _assigned(lines: list[str]) -> list[str]:
    """The names that `lines` bind, in order."""
    found = (re.match(r"\s*(\w+) = ", line) for line in lines)
    return list(dict.fromkeys(match[1] for match in found if match))


def _region(name: str, lines: list[str], later: list[str], random: Random) -> list[str]:
    """A function of `lines`, and its checkpoint: what it binds, and half of what it reads, are arguments, and what
    the lines `later` bind anew: eager would read it as it is by then."""
    names, bound = re.findall(r"\b(?:v\d+|q\d+|[xywbs])\b", " ".join(lines)), _assigned(lines)
    anew = _assigned(later)
    taken = [n for n in dict.fromkeys(names) if n in bound or random.random() < 0.5 or n in anew]
    first = {n: next(k for k, line in enumerate(lines) if re.search(rf"\b{n}\b", line)) for n in taken}
    taken = [n for n in taken if not re.match(rf"\s*{n} = (?!.*\b{n}\b)", lines[first[n]])]
    keeps = "" if random.random() < 0.9 else ", preserve_rng_state=False"
    return [
        f"def {name}({', '.join(taken)}):", *("    " + line for line in lines),
        f"    return {', '.join(bound)}{',' * (len(bound) == 1)}" if bound else "    return ()",
        f"{', '.join(bound) + ',' if bound else '_'} = "
        f"checkpoint({', '.join((name, *taken))}, use_reentrant=False{keeps})"]


@dataclass
class Step:
    """One use of the results: which get a tangent, of what layout; how; with which hooks. Before a
    backward that is "changed" another result is written to, before one that is "altered" an input."""

    chosen: tuple[int, ...]
    layouts: tuple[str, ...]
    how: str  # backward, twice, grad, inner (of another result), double, unused, changed, altered
    hooks: tuple[str, ...]
    other: int = 0
    altered: str = ""


@dataclass
class Program:
    """See the module docstring."""

    seed: int
    has_regions: bool = False
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._alter = random.Random(-1 - self.seed)
        kinds = self.random.choice(("pure", "writes", "quiet", "outside", "all", "all"))
        self.kinds = kinds
        self._names = ["x", "y", "y * 1", "w"]
        self._made: list[str] = []
        statements = [self._statement() for _ in range(self.random.randint(2, 9))]
        if self.has_regions:
            statements = self._with_regions(statements)
        lines = [line for statement in statements for line in statement]
        results = self._results()
        self.count = len(results)
        body = "\n    ".join([*lines, f"return ({', '.join(results)},)"])
        self.text = f"def f(x, y, w, b, s):\n    bias = b\n    {body}\n"
        self.steps = [self._step() for _ in range(5)]

    # ------------------------------------------------------------------ text
    def _statement(self) -> list[str]:
        pick = self.random.random
        is_any = self.kinds == "all"
        if (self.kinds == "writes" or is_any) and self._made and pick() < 0.3:
            return [self._fill(self.random.choice(_WRITES), target=self.random.choice(self._made))]
        if (self.kinds == "quiet" or is_any) and self._made and pick() < 0.25:
            text = self._fill(self.random.choice(_QUIET), target=self.random.choice(self._made))
            return ["with torch.no_grad():", "    " + text]
        if (self.kinds == "outside" or is_any) and self._made and pick() < 0.15:
            return [self._fill(self.random.choice(_OUTSIDE), target=self.random.choice(self._made))]
        kind = self.random.choice((_POINTWISE, _POINTWISE, _MIXING, _VIEWS))
        name = f"v{len(self._made)}"
        line = f"{name} = {self._fill(self.random.choice(kind))}"
        self._made.append(name)
        self._names.append(name)
        if self.random.random() < 0.1:
            return ["with torch.no_grad():", "    " + line]
        return [line]

    def _with_regions(self, statements: list[list[str]]) -> list[list[str]]:
        """`statements`, some of them inside functions that are checkpointed."""
        random, found, place = Random(f"regions of {self.seed}"), [], 0
        while place < len(statements):
            if random.random() < 0.3:
                found.append(statements[place])
                place += 1
                continue
            count = random.randint(1, 4)
            inside = [line for statement in statements[place:place + count] for line in statement]
            if random.random() < 0.3:
                name = random.choice(["x", "y", *_assigned(inside)])
                inside.append(f"d{place} = " + random.choice(_DRAWS).format(a=name))
            later = [line for statement in statements[place + count:] for line in statement]
            found.append(_region(f"r{place}", inside, later, random))
            place += count
        return found

    def _fill(self, text: str, target: str | None = None) -> str:
        recent = self._made[-3:] + self._names
        a = target or f"{self.random.choice(recent)}"
        b = self.random.choice(recent)
        if " " in a:
            a = f"({a})"
        if " " in b:
            b = f"({b})"
        return text.format(a=a, b=b, n=self.random.randrange(100))

    def _results(self) -> list[str]:
        made = self._made or ["y * w"]
        count = self.random.randint(1, min(3, len(made)))
        chosen = [made[-1], *self.random.sample(made, count - 1)]
        odd = ("{0}.detach()", "{0}.sum()", "{0}.t()", "{0}[0]", "({0}, {0})[0]", "y.t()", "y")
        return [
            self.random.choice(odd).format(name) if self.random.random() < 0.15 else name
            for name in chosen]

    # ------------------------------------------------------------------ what is done with results
    def _step(self) -> Step:
        places = list(range(self.count))
        chosen = tuple(sorted(self.random.sample(places, self.random.randint(1, self.count))))
        layouts = tuple(
            self.random.choice(("plain", "plain", "turned", "expanded")) for _ in chosen)
        how = self.random.choice((
            "backward", "backward", "backward", "twice", "grad", "inner", "double", "unused", "changed"))
        hooks = tuple(
            name for name in ("y", "w", "b", "r0", "r1", "post w") if self.random.random() < 0.2)
        other, altered = self.random.randrange(self.count), ""
        if self.has_regions and how == "changed":
            how = "backward"  # eager computes from what is there by then, and may not notice
        elif how == "backward" and self._alter.random() < 0.3:
            how, altered = "altered", self._alter.choice(("x", "y", "w", "b", "s"))
        if self.has_regions and how == "altered":
            how = "twice"
        return Step(chosen, layouts, how, hooks, other, altered)
