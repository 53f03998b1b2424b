"""One text for kernels that differ in sizes alone: the sizes become numbers that each launch passes.

    y = program * 16 + tl.arange(0, 16)[:, None]        the same for both, and
    v0 = tl.load(p0 + (y * 512 + x))            ->          v0 = tl.load(p0 + (y * s0 + x))
    v0 = tl.load(p0 + (y * 1024 + x))                   s0 = 512 for the one and 1024 for the other, a multiple of 16

So the layers of a model are compiled once that differ in width. Sizes are strides, the extents of masks, what
numbers of programs are divided by, and floats that are multiplied with or divided by (those of means). What the code is
made of stays in the text: kernels are one only where they agree in tile, threads and loops, and in the power of two that
each size can be divided by, so that memory is read as many bytes at once (where a mask ends counts only if neighbours along it
are neighbours in memory).

Requires texts of `triton` that know their sizes. Guarantees: what each kernel computes. A float that is a power of two
stays in the text, for its inverse is exact.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from preheat.generate.sources import ALIGN_BYTES, Source
from preheat.generate.triton_ops import FAR
from preheat.ir.scalar import Number

Numbers = tuple[Number, ...]
_HOLE = "\0"
_SIZE = re.compile(
    r"(?P<before>\b(?:program|over)\w* (?:%|//) |(?<=[\w)]) [*<] |tl\.full\(\[\], )"
    r"(?P<number>\d+(?:\.\d+(?:e-?\d+)?)?)(?P<after>, tl\.float32\)|(?![\w.]))")
_ALONG = re.compile(r"tl\.(?:load|store)\(.*\bx\b(?! \*)")  # neighbours along `x` are neighbours in memory
_LOOP = re.compile(r" *(?:for |full = )")  # lines whose numbers are what the code is made of


def shared(sources: Sequence[Source]) -> list[tuple[Source, Numbers]]:
    """Each of the sources, or one that it shares with others, and the numbers that are passed to that."""
    found: list[tuple[Source, Numbers]] = [(source, ()) for source in sources]
    alike: dict[tuple, list[tuple[int, Numbers]]] = {}
    for place, source in enumerate(sources):
        if source.sizing is None:
            parts, sizes, powers = _apart(source)
            key = (*parts, powers, source.signature, source.multiples, source.tile.warps, source.tile.stages,
                   source.has_check, source.is_fused)
            alike.setdefault(key, []).append((place, sizes))
    for (head, parameters, text, powers, *_), members in alike.items():
        columns = [*zip(zip(*(sizes for _, sizes in members)), powers)]
        first: dict[tuple, int] = {}  # of what differs, where it is in the text
        for place, column in enumerate(columns):
            if len(set(column[0])) > 1:
                first.setdefault(column, place)
        if not first:
            continue
        names = {column: f"s{k}" for k, column in enumerate(first)}
        source = sources[members[0][0]]
        joined = _filled(text, [names.get(column, repr(column[0][0])) for column in columns])
        source = replace(
            source, text=f"{head}def {source.name}({', '.join((parameters, *names.values()))}):\n{joined}",
            signature=(*source.signature, *("i32" if power else "fp64" for _, power in names)),
            multiples=(*source.multiples, *(power or 1 for _, power in names)))
        for place, sizes in members:
            found[place] = replace(source, tile=sources[place].tile), tuple(sizes[k] for k in first.values())
    return found


def _apart(source: Source) -> tuple[tuple[str, str, str], Numbers, tuple[int, ...]]:
    """What is before the name of a kernel, its parameters and its lines without their sizes; these; and of each the
    power of two that code gains by when it can be divided by it, 0 of a float."""
    sizes: list[Number] = []
    powers: list[int] = []

    def hole(found: re.Match) -> str:
        text, is_float = found["number"], found["before"].startswith("tl.full")
        if is_float != found["after"].startswith(", tl.float32") or not is_float and not text.isdecimal():
            return found[0]
        number = float(text) if is_float else int(text)
        if math.frexp(number)[0] in (0.0, 0.5) if is_float else number >= FAR:
            return found[0]
        sizes.append(number)
        is_divisor = found["before"][-2] in "%/"
        is_mask = found["before"][-2] == "<" and not is_along
        powers.append(0 if is_float else 1 if is_divisor or is_mask else math.gcd(number, ALIGN_BYTES))
        return found["before"] + _HOLE + found["after"]

    head, rest = source.text.split(f"def {source.name}(", 1)
    parameters, lines = rest.split("):\n", 1)
    is_along = _ALONG.search(lines) is not None
    text = "\n".join(line if _LOOP.match(line) else _SIZE.sub(hole, line) for line in lines.split("\n"))
    return (head, parameters, text), tuple(sizes), tuple(powers)


def _filled(text: str, names: Sequence[str]) -> str:
    first, *parts = text.split(_HOLE)
    return first + "".join(name + part for name, part in zip(names, parts, strict=True))
