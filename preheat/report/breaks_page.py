"""The page docs/breaks.md: every reason of `base/reasons.py` with its cost, remedy and example.

    preheat doctor --reasons > docs/breaks.md

A test holds that the page in the repository is what this gives.
"""

from preheat.base.fallbacks import FALLBACKS
from preheat.base.kinds import KINDS, Reason
from preheat.base.reasons import REASONS
from preheat.base.remedies import REMEDIES

_HEAD = """\
# Breaks: why a call is not one graph, and what to do

`preheat.explain(f)(*args)` and `PREHEAT_LOGS=graph_breaks` name the reason, the line and a hint for
each break; where the line has a known rewrite, the hint is that rewrite with the names of the
program. `fullgraph=True` raises at the first break but a write read back. This page is made from the tables in
`base/reasons.py` and `base/fallbacks.py` by `preheat doctor --reasons`; each example is run by the tests. In the examples
`x` is a tensor of four floats.

## What a break costs
| kind | cost |
|---|---|
"""
_ROWS_HEAD = """
## The reasons
| reason | kind | the call is not one graph because it ... |
|---|---|---|
"""
_FALLBACKS_HEAD = """
## Op by op
A part of the call that was captured whole may still run op by op through torch: the same results, not
fused. `explain` shows it as "op by op", `PREHEAT_LOGS=fallbacks` as it happens.

| reason | it runs op by op because it ... | what to do |
|---|---|---|
"""
_REMEDIES_HEAD = """
## New variants
A call that no variant fits is captured once more. `PREHEAT_LOGS=recompiles` tells what differed, where the program looked at it
if it was a number, and what to do; so does the warning when `recompile_limit` is reached. Of a number that the program
has looked at the hint says by what: `preheat.explain(f)(*args)` shows all of these.

| a call is a new variant where ... | what to do |
|---|---|
"""


def breaks_page() -> str:
    """The page as Markdown."""
    kinds = "".join(f"| {kind.title} | {kind.cost} |\n" for kind in KINDS.values())
    rows = "".join(
        f"| [`{name}`](#{name}) | {KINDS[row.kind].title} | {_sentence(row)} |\n"
        for name, row in REASONS.items()
    )
    sections = "".join(_section(name, row) for name, row in REASONS.items())
    fallbacks = "".join(
        f"| `{name}` | {row.sentence} | {row.hint} |\n" for name, row in FALLBACKS.items())
    remedies = "".join(f"| {row.what} | {row.hint} |\n" for row in REMEDIES.values())
    return (
        f"{_HEAD}{kinds}{_ROWS_HEAD}{rows}{sections}{_FALLBACKS_HEAD}{fallbacks}{_REMEDIES_HEAD}{remedies}")


def _section(name: str, row: Reason) -> str:
    text = f"\n### {name}\nThe call {_sentence(row)}. *What to do:* {row.hint}.\n"
    if not row.before:
        return text
    return f"{text}\n{_code(row.before)}Without the break:\n{_code(row.after)}"


def _code(text: str) -> str:
    return f"```python\n{text.strip()}\n```\n"


def _sentence(row: Reason) -> str:
    return row.sentence.replace(" ({detail})", "").format(detail="something")
