"""The smallest program that still fails: statements, rows and operands are dropped one by one.

    small = shrink(script, lambda script: check(script).kind == "differs", seconds=60)
"""

import ast
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz.grammar import Script

_SUITES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(script: Script, fails: Callable[[Script], bool], seconds: float = 60.0) -> Script:
    """`script` after every single change that leaves it failing, greedily, within the time."""
    until = time.monotonic() + seconds
    while True:
        for smaller in _smaller(script):
            if time.monotonic() > until:
                return script
            if _is_valid(smaller) and fails(smaller):
                script = smaller
                break
        else:
            return script


def _smaller(script: Script) -> Iterator[Script]:
    """Large cuts first: calls, rows between calls, statements, then parts of expressions."""
    if len(script.calls) > 1:
        yield replace(script, calls=script.calls[:-1])
    for number, rows in enumerate(script.calls):
        for row in rows:
            kept = tuple(other for other in rows if other != row)
            calls = (*script.calls[:number], kept, *script.calls[number + 1 :])
            yield replace(script, calls=calls)
    for text in (*_without_statements(script.text), *_without_operands(script.text)):
        yield replace(script, text=text)


def _without_statements(text: str) -> Iterator[str]:
    """Halves of the suites first, then quarters ..., then statements opened to their bodies."""
    tree = ast.parse(text)
    suites = [
        (number, name, len(_suite(node, name)))
        for number, node in enumerate(ast.walk(tree))
        for name in _SUITES
    ]
    cuts = [
        (length, start, number, name)
        for number, name, size in suites
        for length in {size >> shift for shift in range(size.bit_length())}
        for start in range(0, size, length)
    ]
    for length, start, number, name in sorted(cuts, key=lambda cut: -cut[0]):
        yield from _cut(tree, number, name, slice(start, start + length), is_opened=False)
    for number, name, size in suites:
        for start in range(size):
            yield from _cut(tree, number, name, slice(start, start + 1), is_opened=True)


def _cut(tree: ast.AST, number: int, name: str, where: slice, is_opened: bool) -> Iterator[str]:
    changed = copy.deepcopy(tree)
    statements = _suite(list(ast.walk(changed))[number], name)
    cut = statements[where]
    if all(isinstance(one, ast.Pass) for one in cut):
        return
    body = []
    if is_opened:
        body = getattr(cut[0], "body", [])
        is_scope = isinstance(cut[0], ast.FunctionDef | ast.ClassDef)
        if is_scope or not body or not isinstance(body[0], ast.stmt):
            return
    statements[where] = body
    if name == "body" and not statements:
        statements.append(ast.Pass())
    yield _text(changed)


def _without_operands(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    for node_number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr):
            continue
        for child in ast.iter_child_nodes(node):
            is_target = isinstance(getattr(child, "ctx", None), ast.Store)
            if isinstance(child, ast.expr) and not is_target:
                changed = copy.deepcopy(tree)
                wanted = list(ast.walk(changed))[node_number]
                yield _text(_Put(wanted, copy.deepcopy(child)).visit(changed))


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _suite(node: ast.AST, name: str) -> list:
    found = getattr(node, name, [])
    return found if isinstance(found, list) else []


def _text(tree: ast.AST) -> str:
    try:
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    except Exception:  # a tree that is no program: the caller drops it
        return "?"


def _is_valid(script: Script) -> bool:
    try:
        compile(script.text, "<smaller>", "exec")
    except (SyntaxError, ValueError):
        return False
    return "program" in script.text.casefold()
