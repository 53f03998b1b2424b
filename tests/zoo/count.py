"""Breaks of one architecture, ours and torch.compile's, and whether results are eager's.

    python -m zoo.count ours bert gpt2          one line of JSON for each name, on standard output
    python -m zoo.count torch bert
    python -m zoo.count ours generate:llama     20 tokens, the forward pass compiled

Both count what one call does to a model that has been called before without a compiler: first calls
set things up. A break of ours is a place where the call is not one graph, as `preheat.explain`
lists them; of torch.compile's, a reason that `torch._dynamo.explain` gives, or an entry of its
counter.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

import preheat
from preheat.base.events import bus
from same import Program, same_program
from zoo.models import build, causal

TOKENS = 20


@dataclass(frozen=True)
class Count:
    """breaks is -1 where the compiler raised; `reasons` are short, most frequent first."""

    name: str
    breaks: int
    graphs: int
    reasons: tuple[str, ...] = ()
    is_equal: bool | None = None
    error: str = ""


def ours(name: str) -> Count:
    """Preheat: equal to eager over two calls, then the breaks of one."""
    if name.startswith("generate:"):
        return _ours_generating(name)
    error = _difference(lambda: _as_program(name))
    model, inputs = build(name)
    with torch.no_grad():
        model(**inputs)
        explained = preheat.explain(model)(**inputs)
    reasons = [f"{row.reason}: {row.detail}" for row in explained.breaks]
    return Count(
        name, explained.break_count, explained.graph_count, _short(reasons), not error, error)


def _as_program(name: str) -> Program:
    model, inputs = build(name)
    return Program(model, (), inputs)


def _difference(make: Callable[[], Program]) -> str:
    """What differs between compiled and eager, "" if nothing."""
    try:
        same_program(make, calls=2)
    except Exception as difference:  # told in the table
        return f"{type(difference).__name__}: {difference}"[:300]
    return ""


def _ours_generating(name: str) -> Count:
    model, inputs = causal(name.partition(":")[2])
    expected = _generate(model, inputs)
    places: dict[tuple, None] = {}
    compiled = preheat.compile(model, options={"cache": False})
    unsubscribe = bus.subscribe(
        lambda event: places.update({_place(event.data): None}), {"break"})
    before = preheat.counters()["captures"]
    try:
        found = [_generate(compiled, inputs) for _ in range(2)]
    finally:
        unsubscribe()
    is_equal = all(torch.equal(expected, one) for one in found)
    graphs = preheat.counters()["captures"] - before
    reasons = [f"{place[0]}: {place[1]}" for place in places]
    return Count(name, len(places), graphs, _short(reasons), is_equal)


def _place(data: Any) -> tuple:
    return data["reason"], data["detail"], data["file"], data["line"]


def _generate(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    with torch.no_grad():
        return model.generate(
            **inputs, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)


def theirs(name: str) -> Count:
    """torch.compile, without code generation: only what breaks is asked."""
    import torch._dynamo as dynamo  # only where asked for: it costs seconds

    dynamo.reset()
    dynamo.utils.counters.clear()
    if name.startswith("generate:"):
        model, inputs = causal(name.partition(":")[2])
        expected = _generate(model, inputs)
        model.forward = torch.compile(model.forward, backend="eager")
        found = _generate(model, inputs)
        broken = dynamo.utils.counters["graph_break"]
        graphs = dynamo.utils.counters["stats"]["unique_graphs"]
        return Count(name, len(broken), graphs, _short(broken), torch.equal(expected, found))
    model, inputs = build(name)
    with torch.no_grad():
        model(**inputs)
        explained = dynamo.explain(model)(**inputs)
    reasons = [str(row.reason) for row in explained.break_reasons]
    return Count(name, explained.graph_break_count, explained.graph_count, _short(reasons))


def _short(reasons: Iterable[str]) -> tuple[str, ...]:
    """First lines, each once."""
    firsts = (reason.strip().splitlines()[0][:140] for reason in reasons if reason.strip())
    return tuple(dict.fromkeys(firsts))


def counted(side: str, name: str) -> Count:
    try:
        return {"ours": ours, "torch": theirs}[side](name)
    except Exception as error:  # told in the table
        return Count(name, -1, 0, error=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for wanted in sys.argv[2:]:
        print(json.dumps(asdict(counted(sys.argv[1], wanted))), flush=True)
