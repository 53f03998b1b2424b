"""Places in source text: the statements that hold a line, with what is around them.

    spots("def f(x):\n    if x.any():\n        x = x * 2", 2)   ->  the `if`, in the function `f`
    spots("a = x.sum(); print(a)", 1, 13)                        ->  the `print`

The source is parsed, never run: the function around the line alone where that parses, since files
are long.
"""

import ast
import inspect
import itertools
import re
import tokenize
from collections.abc import Iterator

from preheat.base.dataclass import dataclass

_LONGEST_FILE = 2000  # lines that are parsed whole for a line outside all functions
_MOST_TRIES = 4


@dataclass(frozen=True)
class Spot:
    """statement   one that holds the line;  after   those that follow it in its block
    function    the function around it, or None"""

    statement: ast.stmt
    after: tuple[ast.stmt, ...]
    function: ast.AST | None


def spots(source: str, line: int, column: int = -1) -> list[Spot]:
    """The statements whose own text holds `column` (in bytes) of `line`, innermost first. Where the column
    is not known (-1): all that the line holds, none if one does not hold the other. None if nothing
    there parses."""
    lines = source.splitlines(keepends=True)
    if not 0 < line <= len(lines):
        return []
    for text, offset in itertools.islice(_texts_around(lines, line), _MOST_TRIES):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        if offset:
            ast.increment_lineno(tree, offset)
        found = [
            Spot(node, tuple(block[place + 1:]), function)
            for block, function in _blocks(tree, None)
            for place, node in enumerate(block)
            if _holds(node, line, column)
        ]
        if found:
            return found[::-1] if _is_nested(found) else []
    return []


def _holds(node: ast.stmt, line: int, column: int) -> bool:
    if not node.lineno <= line <= _last_line(node):
        return False
    if column < 0:
        return True
    body, place = getattr(node, "body", None), (line, column)
    end = node.end_lineno, node.end_col_offset
    if isinstance(body, list) and body:
        end = min(end, (body[0].lineno, body[0].col_offset))
    return (node.lineno, node.col_offset) <= place < end


def _is_nested(found: list[Spot]) -> bool:
    """Whether each of these statements, outermost first, holds the next."""
    return all(
        outer.statement.end_lineno is not None
        and (outer.statement.end_lineno, outer.statement.end_col_offset)
        >= (inner.statement.end_lineno, inner.statement.end_col_offset)
        for outer, inner in zip(found, found[1:]))


def _last_line(node: ast.stmt) -> int:
    """The last line of a statement; of a compound one, the last before its body."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return max(node.lineno, body[0].lineno - (body[0].lineno > node.lineno))
    return node.end_lineno or node.lineno


def _texts_around(lines: list[str], line: int) -> Iterator[tuple[str, int]]:
    """Texts that may hold `line` and parse, and how far their lines are moved: the functions around
    it, innermost first, then the whole source if that is not too long. A line of a string may look
    like the head of a function: then its text does not parse, or does not hold the line."""
    here = line - 1
    while here < len(lines) - 1 and lines[here].lstrip().startswith("@"):
        here += 1
    depth = _depth(lines[here]) + (_DEFINITION.match(lines[here]) is not None)
    for start in range(here, -1, -1):
        if _DEFINITION.match(lines[start]) and _depth(lines[start]) < depth:
            try:
                text = "".join(inspect.getblock(lines[start:]))
            except (tokenize.TokenError, SyntaxError):
                continue
            yield (text, start) if _depth(text) == 0 else ("if True:\n" + text, start - 1)
    if len(lines) <= _LONGEST_FILE:
        yield "".join(lines), 0


_DEFINITION = re.compile(r"\s*(?:async\s+)?def\s")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _blocks(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[list, ast.AST | None]]:
    """Every list of statements, with the function that it is of."""
    inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block, inner
            for child in block:
                yield from _blocks(child, inner)
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from _blocks(handler, inner)
