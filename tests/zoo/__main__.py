"""Writes docs/zoo.md: every architecture, ours and torch.compile's breaks. `make zoo`.

    python -m zoo [--only bert,gpt2] [--keep FILE]      in tests/

Each side counts in a process of its own; another goes on after one that dies. `--keep` is a file of
the counts so far: what stands there is not counted again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from zoo.count import TOKENS, Count
from zoo.models import ARCHITECTURES, CAUSAL

DOCUMENT = Path(__file__).parents[2] / "docs" / "zoo.md"
NAMES = (*ARCHITECTURES, *(f"generate:{name}" for name in CAUSAL))


def main() -> int:
    """Counts, writes; 1 if anything is not as eager."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    wanted = parser.parse_args()
    names = tuple(filter(None, wanted.only.split(","))) or NAMES
    counts = {side: _all(side, names, wanted.keep) for side in ("ours", "torch")}
    text = document(counts["ours"], counts["torch"])
    print(text)
    if names == NAMES:
        DOCUMENT.write_text(text)
    return 0 if all(one.is_equal for one in counts["ours"].values()) else 1


def _all(side: str, names: Iterable[str], keep: Path | None) -> dict[str, Count]:
    known = dict(_read(side, keep)) if keep is not None else {}
    left = [name for name in names if name not in known]
    while left:
        for count in _counts(side, left, keep):
            known[count.name] = count
            left.remove(count.name)
        if left:  # the process died on the first that is left
            known[left[0]] = Count(left[0], -1, 0, error="the process died")
            del left[0]
    return {name: known[name] for name in names}


def _counts(side: str, names: list[str], keep: Path | None) -> Iterable[Count]:
    command = [sys.executable, "-W", "ignore", "-m", "zoo.count", side, *names]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            if not line.startswith('{"name"'):
                continue
            if keep is not None:
                with keep.open("a") as out:
                    print(side, line.strip(), file=out)
            print(side, line.strip()[:160], file=sys.stderr, flush=True)
            yield _parsed(line)


def _read(side: str, keep: Path) -> Iterable[tuple[str, Count]]:
    for row in keep.read_text().splitlines() if keep.exists() else ():
        told, _, line = row.partition(" ")
        if told == side:
            yield json.loads(line)["name"], _parsed(line)


def _parsed(line: str) -> Count:
    data = json.loads(line)
    return Count(**{**data, "reasons": tuple(data["reasons"])})


# ---------------------------------------------------------------------------- the document
def document(ours: dict[str, Count], theirs: dict[str, Count]) -> str:
    """The page: sums, the forward passes, generation, and what broke."""
    forward = [name for name in ours if ":" not in name]
    generating = [name for name in ours if ":" in name]
    parts = [
        "# The transformers zoo",
        "Written by `make zoo`: architectures of transformers from configuration, tiny, with "
        "random weights, in eval mode on the CPU; each was called once without a compiler before "
        "it was counted. A break is a place where a call is not one graph, as `preheat.explain` "
        "and `torch._dynamo.explain` list them; ! means that the compiler raised. Equal: two compiled "
        "calls give what eager gives, by tests/same.py.",
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}.",
        _sums("Forward passes", forward, ours, theirs),
        _table(forward, ours, theirs),
        f"## Generation of {TOKENS} tokens",
        "The model is compiled, `generate` drives it, greedily, with its own cache.",
        _sums("Generation", generating, ours, theirs),
        _table(generating, ours, theirs),
        "## What broke",
        _reasons("Preheat", ours),
        _reasons("torch.compile", theirs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sums(title: str, names: list[str], ours: dict[str, Count], theirs: dict[str, Count]) -> str:
    if not names:
        return ""
    equal = sum(bool(ours[name].is_equal) for name in names)
    whole = [sum(side[name].breaks == 0 for name in names) for side in (ours, theirs)]
    theirs_whole = [name for name in names if theirs[name].breaks == 0]
    also = sum(ours[name].breaks == 0 for name in theirs_whole)
    total = [sum(max(side[name].breaks, 0) for name in names) for side in (ours, theirs)]
    failed = [sum(side[name].breaks < 0 for name in names) for side in (ours, theirs)]
    return (
        f"{title}: {len(names)}, of which {equal} equal eager. Without a break: Preheat "
        f"{whole[0]}, torch.compile {whole[1]}; of the {len(theirs_whole)} that torch.compile does "
        f"not break, Preheat breaks {len(theirs_whole) - also}. Breaks in total: Preheat "
        f"{total[0]}, torch.compile {total[1]}; raised: {failed[0]} and {failed[1]}."
    )


def _table(names: list[str], ours: dict[str, Count], theirs: dict[str, Count]) -> str:
    rows = ["| architecture | equal | breaks | torch.compile's |", "|---|---|---|---|"]
    for name in names:
        equal = "yes" if ours[name].is_equal else "**no**"
        rows.append(
            f"| {name.rpartition(':')[2]} | {equal} | {_number(ours[name])} | "
            f"{_number(theirs[name])} |")
    return "\n".join(rows) if names else ""


def _number(count: Count) -> str:
    return "!" if count.breaks < 0 else str(count.breaks)


def _reasons(title: str, counts: dict[str, Count]) -> str:
    lines = [
        f"* {name}: {'; '.join(filter(None, (*count.reasons, count.error)))}"
        for name, count in counts.items()
        if count.breaks or count.error
    ]
    return f"{title}:\n\n" + ("\n".join(lines) if lines else "nothing.")


if __name__ == "__main__":
    sys.exit(main())
