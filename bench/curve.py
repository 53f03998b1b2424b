"""A short training run, eager and compiled: a character-level GPT learns a text of this repository.

python -m bench.curve [STEPS]     writes docs/training-run.md: both curves and how far they part

Training amplifies the last bit of a float: two runs part that differ in nothing else. How far eager
parts from itself, begun at weights that are off by their last bit, is what the compiled run is measured by.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import preheat

ROOT = Path(__file__).parent.parent
TEXT = ROOT / "LICENSE"
STEPS = 300
_WIDTH, _HEADS, _LAYERS, _CONTEXT, _BATCH = 64, 4, 3, 64, 16


class Block(nn.Module):
    """Causal attention and a perceptron, each with its norm and residual. x: [B, T, C], float32."""

    def __init__(self, dropout: float):
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, _HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, _WIDTH)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class CharacterGpt(nn.Module):
    """Next-character logits. tokens: [B, T], int64 -> loss against `targets`, float32 []."""

    def __init__(self, vocabulary: int, dropout: float = 0.1):
        super().__init__()
        self.token = nn.Embedding(vocabulary, _WIDTH)
        self.place = nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(_LAYERS))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, vocabulary, bias=False)
        self.head.weight = self.token.weight  # tied, as in GPT-2
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def losses(
    compile: Callable[[nn.Module], Callable], steps: int = STEPS, nudge: bool = False,
) -> list[float]:
    """The loss of each step of a run from seed 0: AdamW, warm-up and decay, clipped gradients.

    nudge    begins at weights that are off by their last bit
    """
    text = TEXT.read_text(encoding="utf-8")
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    torch.manual_seed(0)
    model = CharacterGpt(len(letters))
    if nudge:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.nextafter(parameter, torch.tensor(torch.inf)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    call, found = compile(model), []
    for _ in range(steps):
        begins = torch.randint(len(data) - _CONTEXT - 1, (_BATCH,)).tolist()
        batch = torch.stack([data[k:k + _CONTEXT + 1] for k in begins])
        optimizer.zero_grad()
        loss = call(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        found.append(loss.item())
    return found


def page(eager: list[float], compiled: list[float], nudged: list[float]) -> str:
    """The page of the documentation: a chart that a browser draws from its text, and figures."""
    every = max(1, len(eager) // 30)
    places = [*range(0, len(eager), every), len(eager) - 1]
    parts = [_part(run, eager) for run in (compiled, nudged)]
    curves = "\n".join(
        f"  line [{', '.join(f'{run[k]:.3f}' for k in places)}]" for run in (eager, compiled))
    rows = "\n".join(
        f"| {k} | {eager[k]:.6f} | {compiled[k]:.6f} | {parts[0][k]:.1e} | {parts[1][k]:.1e} |"
        for k in places[::3])
    return f"""# A training run: the same curve

A character-level GPT ({_LAYERS} layers of {_WIDTH}, dropout 0.1, tied weights) learns the text of `LICENSE` for
{len(eager)} steps of AdamW with a one-cycle schedule and clipped gradients: once eager, once with `preheat.compile(model)`.
Seed, batches and dropout masks are the same, since compiled code draws from torch's own stream. Written by
`python -m bench.curve`; `tests/training/test_curve.py` holds what it shows.

```mermaid
xychart-beta
  title "Loss by step: eager and compiled, one upon the other"
  x-axis "step" [{', '.join(map(str, places))}]
  y-axis "loss"
{curves}
```

How far two runs part says nothing by itself: training amplifies the last bit. So the last column is eager again, from
weights that differ in their last bits.

| step | eager | compiled | largest difference so far | of eager, one bit off |
|---|---|---|---|---|
{rows}
"""


def _part(run: list[float], other: list[float]) -> list[float]:
    """The largest difference up to each step."""
    found, most = [], 0.0
    for a, b in zip(run, other):
        most = max(most, abs(a - b))
        found.append(most)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    eager, nudged = losses(lambda model: model, steps), losses(lambda model: model, steps, True)
    compiled = losses(preheat.compile, steps)
    text = page(eager, compiled, nudged)
    (ROOT / "docs" / "training-run.md").write_text(text, encoding="utf-8")
    print(text)
    print(preheat.counters())
