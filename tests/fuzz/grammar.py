"""Random programs as source text, from tables of templates: readable, seeded.

    write(random.Random(7))  ->  Script("def program(x, y, v, n, flag, ...):\\n ...", calls)

Most programs run without an error. Names are known by the kind of their value; a nested block knows
the names around it, and what it makes is forgotten after it.
"""

import ast
import random
import re
from dataclasses import dataclass, field

from fuzz.expressions import EXPRESSIONS
from fuzz.statements import BETWEEN, COMPOUND, RESULTS, SIMPLE

HOLE = re.compile(r"\{(block|[+*]?[A-Za-z])\}")

@dataclass(frozen=True)
class Script:
    """A program of the namespace `world.TEXT`: its `program`, and what happens before each call."""

    text: str
    calls: tuple[tuple[str, ...], ...]
    is_module: bool = False


def choices(table: str, between: str = "\n") -> list[str]:
    """The rows of a table."""
    return [row.strip() for row in table.strip().split(between)]


_SIMPLE, _COMPOUND = choices(SIMPLE), choices(COMPOUND, "\n\n")
_EXPRESSIONS = {kind: choices(table) for kind, table in EXPRESSIONS.items()}
_RESULTS, _BETWEEN = choices(RESULTS), choices(BETWEEN)
# Rows that always end the program early, or that may: seldom.
_SELDOM = re.compile(r"^(raise|fail\(|assert|if \{B\}:\n    return)")


@dataclass
class Scope:
    """Names by kind, and which of them may be assigned to here."""

    names: dict[str, list[str]]
    owned: set[str] = field(default_factory=set)

    def inner(self) -> "Scope":
        return Scope({kind: list(names) for kind, names in self.names.items()}, set(self.owned))


class Writer:
    """Fills templates, with a random generator of its own and names that count up."""

    def __init__(self, chance: random.Random):
        self.chance, self.count = chance, 0

    def block(self, scope: Scope, depth: int, size: int, indent: str) -> str:
        parts = []
        for _ in range(size):
            parts.append(self.statement(scope, depth, indent))
        return "\n".join(parts)

    def statement(self, scope: Scope, depth: int, indent: str) -> str:
        is_compound = depth > 0 and self.chance.random() < 0.4
        table = _COMPOUND if is_compound else _SIMPLE
        row = self.chance.choice(table)
        while _SELDOM.match(row) and self.chance.random() < 0.85:
            row = self.chance.choice(table)
        return self.fill(row, scope, depth, indent)

    def fill(self, row: str, scope: Scope, depth: int, indent: str) -> str:
        """The template with every hole filled; targets are known from the next line on."""
        outside = scope.inner()
        written, targets, is_inside = [], [], False
        local: dict[str, str] = {}
        for line in row.splitlines():
            is_inside = is_inside or "{block}" in line
            margin = indent + line[: len(line) - len(line.lstrip())]
            if line.strip() == "{block}":
                self._learn(scope, targets)
                inner = scope.inner()
                written.append(self.block(inner, depth - 1, self.chance.randint(1, 3), margin))
                continue

            def put(hole: re.Match) -> str:
                return self._hole(hole.group(1), scope, targets, local)

            text = HOLE.sub(put, line.strip()).replace("{{", "{").replace("}}", "}")
            written.append(margin + text)
            self._learn(scope, targets)
        if "\n" in row and not row.startswith(("total", "seen", "def", "class", "pending", "{*")):
            scope.names, scope.owned = outside.names, outside.owned | (scope.owned & outside.owned)
        return "\n".join(written)

    def _learn(self, scope: Scope, targets: list[tuple[str, str, bool]]) -> None:
        for kind, name, is_owned in targets:
            if name not in scope.names.setdefault(kind, []):
                for other in scope.names.values():
                    if name in other:
                        other.remove(name)
                scope.names[kind].append(name)
            if is_owned:
                scope.owned.add(name)
        targets.clear()

    def _hole(
        self, hole: str, scope: Scope, targets: list[tuple[str, str, bool]], local: dict[str, str]
    ) -> str:
        if hole[0] in "+*":
            kind = hole[1]
            known = [name for name in scope.names.get(kind, ()) if name in scope.owned]
            if hole[0] == "+" and known and self.chance.random() < 0.5:
                name = self.chance.choice(known)
            else:
                self.count += 1
                name = f"{kind}{self.count}"
            if hole[0] == "*":  # never assigned to again: loops end
                local[kind] = name
            targets.append((kind, name, hole[0] == "+"))
            return name
        if hole in local:  # the name that this statement made
            return local[hole]
        return self.expression(hole, scope, 2)

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        if kind in "kcE":
            return self.chance.choice(_EXPRESSIONS[kind])
        if kind in _EXPRESSIONS and depth > 0:
            row = self.chance.choice(_EXPRESSIONS[kind])
            text = HOLE.sub(lambda hole: self.expression(hole.group(1), scope, depth - 1), row)
            return f"({text})"  # `write` takes away those that nothing needs
        if kind in ("L", "X", "B", "T"):
            return {"L": "[x, y]", "X": "None", "B": "flag", "T": "'t'"}[kind]
        if kind in "MVSN":
            kind = kind.lower()
        return self.chance.choice(scope.names[kind])


def write(chance: random.Random) -> Script:
    """A program and its calls."""
    writer = Writer(chance)
    scope = Scope({"m": ["x", "y"], "v": ["v"], "s": ["s"], "n": ["n"], "x": []}, {"x", "y", "n"})
    is_module = chance.random() < 0.3
    head = (
        "class Program(World):\n"
        "    def forward(w, x, y, v, n, flag, items, options, *rest, **named):\n"
        if is_module
        else "def program(x, y, v, n, flag, items, options, *rest, w=None, **named):\n"
    )
    margin = "        " if is_module else "    "
    body = [f"{margin}global CALLS", f"{margin}s = v[1]"]
    helper = chance.random() < 0.2
    text = ""
    if helper:
        inner = Scope({"m": ["x", "y"], "v": ["v"], "s": ["s"], "n": ["n"], "x": []}, {"x", "y"})
        text += (
            "def helper(x, y, n=2, flag=True, *, items=LIMITS, options=TABLE, w=WORLD, "
            "rest=(), **named):\n"
            "    global CALLS\n    v, s = x[0], y.max()\n"
            + writer.block(inner, 1, chance.randint(1, 4), "    ")
            + "\n    return "
            + writer.expression("M", inner, 2)
            + "\n\n\n"
        )
        body.append(f"{margin}x = helper(x, y, n, w=w)")
    depth, most = chance.choice(((1, 3), (1, 5), (2, 5), (2, 9)))
    body.append(writer.block(scope, depth, chance.randint(2, most), margin))
    row = chance.choice(_RESULTS)
    result = HOLE.sub(lambda hole: writer.expression(hole.group(1), scope, 2), row)
    body.append(f"{margin}return {result.replace('{{', '{').replace('}}', '}')}")
    text += head + "\n".join(body) + "\n"
    text = ast.unparse(ast.parse(text)) + "\n"
    calls = tuple(
        tuple(chance.sample(_BETWEEN, chance.choice((0, 0, 1, 1, 2)))) for _ in range(4)
    )
    return Script(text, ((), *calls), is_module)
