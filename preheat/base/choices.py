"""Choices by the value of a tensor, written as arithmetic: `if`, `while` and `assert` as text.

    if mask.any(): x = x * 2           x = torch.where(mask.any(), x * 2, x)
    while r > tol: x = f(x)            for _ in range(100): x = torch.where(r > tol, f(x), x)
    assert (x > 0).all(), "negative"   torch._assert_async((x > 0).all(), "negative")

Syntax trees in, text out; "" where a statement does more than choose between values. Both sides of
a choice are computed, so an expression that prints or writes in place is not taken for a value.
"""

import ast
import copy
from collections.abc import Callable, Iterable, Iterator

BOTH = "  # both sides are computed"
STEPS = "for _ in range(100):  # a bound of your choice; what is past the end changes nothing"

_NUMERIC = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_GIVES_BOOL = frozenset("""
    any all isnan isinf isfinite isclose isin eq ne lt gt le ge less greater logical_and logical_or
    logical_not logical_xor signbit
""".split())
_NUMBERS = frozenset(("bool", "float", "int"))
_EFFECTS = frozenset("print input open exec eval setattr delattr next".split())
_NO_TENSORS = (
    ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.Lambda, ast.ListComp, ast.DictComp,
    ast.SetComp, ast.GeneratorExp, ast.Tuple,
)
_NO_VALUES = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Starred)


# ---------------------------------------------------------------------------- statements
def choice(node: ast.stmt, after: tuple[ast.stmt, ...], function: ast.AST | None) -> str:
    """`if c: x = a` as `x = torch.where(c, a, x)`, `if c: return a` likewise."""
    if not isinstance(node, ast.If):
        return ""
    test = as_condition(node.test, function)
    if test is None:
        return ""
    pair = _returned(node, after)
    if pair is not None:
        return f"return {_where_text(test, *pair)}{BOTH}"
    found = _arms(node, function)
    if not found:
        return ""
    lines = [ast.unparse(value) for value in found.values()]
    if len(found) == 1:
        return f"{next(iter(found))} = {lines[0]}{BOTH}"
    return "\n".join((f"{', '.join(found)} = ({BOTH}", *(f"    {line}," for line in lines), ")"))


def loop(node: ast.stmt, function: ast.AST | None) -> str:
    """`while c: x = f(x)` as a bounded loop whose steps past the end keep the values."""
    if not isinstance(node, ast.While) or node.orelse:
        return ""
    test = as_condition(node.test, function)
    if test is None:
        return ""
    go = next(name for name in ("go", "is_going", "goes_on_") if name not in _names(node))
    bound = _bound(function, node.lineno)
    lines = [STEPS, f"    {go} = {ast.unparse(test)}"]
    for statement in node.body:
        pair = _assignment(statement)
        if pair is None or not _is_value(pair[1]):
            return ""
        target, value = ast.unparse(pair[0]), pair[1]
        if isinstance(pair[0], ast.Name) and bound is not None and target not in bound:
            lines.append(f"    {target} = {ast.unparse(value)}")
        else:
            lines.append(f"    {target} = torch.where({go}, {ast.unparse(value)}, {target})")
    return "\n".join(lines)


def check(node: ast.stmt, function: ast.AST | None) -> str:
    """`assert c, "why"` and `if c: raise E("why")` as an op that raises."""
    if isinstance(node, ast.Assert):
        test, message = node.test, node.msg
    elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[0], ast.Raise):
        test, message = ast.UnaryOp(ast.Not(), node.test), None
        raised = node.body[0].exc
        if isinstance(raised, ast.Call) and len(raised.args) == 1:
            message = raised.args[0]
    else:
        return ""
    condition = as_condition(test, function)
    if condition is None:
        return ""
    is_text = isinstance(message, ast.Constant) and isinstance(message.value, str)
    more = f", {ast.unparse(message)}" if is_text else ""
    return f"torch._assert_async({ast.unparse(condition)}{more})  # raises RuntimeError"


# ---------------------------------------------------------------------------- conditions
def as_condition(node: ast.expr, function: ast.AST | None) -> ast.expr | None:
    """What Python asks the truth of, as a tensor of one bool; None if it asks other things."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = as_condition(node.operand, function)
        if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Invert):
            return inner.operand
        return None if inner is None else ast.UnaryOp(ast.Invert(), inner)
    if isinstance(node, ast.BoolOp):
        return _joined(
            [as_condition(part, function) for part in node.values],
            ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr())
    if isinstance(node, ast.Compare):
        return _comparison(node)
    inner = number_of(node)
    if inner is not None:
        return as_condition(inner, function)
    if isinstance(node, ast.Constant | ast.NamedExpr) or isinstance(node, _NO_TENSORS):
        return None
    name = name_of_call(node)
    if name == "equal":
        return _all_of(lambda left, right: ast.Compare(left, [ast.Eq()], [right]), node)
    if name == "allclose":
        close = copy.deepcopy(node)
        close.func.attr = "isclose"
        return ast.Call(ast.Attribute(close, "all", ast.Load()), [], [])
    if name in _GIVES_BOOL or _is_bool_name(node, function):
        return as_tensor(node)
    return ast.Compare(as_tensor(node), [ast.NotEq()], [ast.Constant(0)])


def is_mask(node: ast.expr, function: ast.AST | None) -> bool:
    """Whether `node` is a tensor of bools, as far as its text says."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor)
    is_compared = isinstance(node, ast.Compare) or name_of_call(node) in _GIVES_BOOL
    return is_compared or _is_bool_name(node, function)


def as_tensor(node: ast.expr) -> ast.expr:
    """`node` with its tensors left tensors: no `.item()`, `float(...)`, `len(m.nonzero())`."""
    return _Numbers().visit(copy.deepcopy(node))


def number_of(node: ast.AST) -> ast.expr | None:
    """The tensor of `t.item()`, `float(t)`, `int(t)`, `bool(t)`; None for anything else."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
        return node.func.value
    if isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1:
        (arg,) = node.args
        return None if isinstance(arg, ast.Constant | ast.JoinedStr | ast.Starred) else arg
    return None


def hits_of(node: ast.AST) -> ast.expr | None:
    """The mask of `len(m.nonzero())`, `m.nonzero().shape[0]`, `torch.nonzero(m).size(0)`."""
    if name_of_call(node) == "len" and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return nonzero_of(node.args[0])
    if name_of_call(node) == "size" and [ast.unparse(arg) for arg in node.args] == ["0"]:
        return nonzero_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        shape = node.value
        if isinstance(shape, ast.Attribute) and shape.attr == "shape":
            return nonzero_of(shape.value)
    return None


def nonzero_of(node: ast.AST) -> ast.expr | None:
    """The mask of `m.nonzero()` and `torch.nonzero(m)`."""
    if not is_method(node, "nonzero", "argwhere"):
        return None
    if ast.unparse(node.func.value) == "torch":
        return node.args[0] if len(node.args) == 1 and not node.keywords else None
    return node.func.value if not node.args and not node.keywords else None


def name_of_call(node: ast.AST) -> str:
    """The last name of what `node` calls: "any" of `mask.any()`; "" if it calls nothing named."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr
        if isinstance(node.func, ast.Name):
            return node.func.id
    return ""


def is_method(node: ast.AST, *names: str) -> bool:
    """Whether `node` calls an attribute of one of these names: `m.any()`, `torch.any(m)`."""
    return name_of_call(node) in names and isinstance(node.func, ast.Attribute)


class _Numbers(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        hits = hits_of(node)
        if hits is not None:
            return count_of(hits)
        inner = number_of(node)
        if inner is None:
            return self.generic_visit(node)
        found = self.visit(inner)
        if isinstance(node.func, ast.Name) and node.func.id == "int":
            return ast.Call(ast.Attribute(found, "long", ast.Load()), [], [])
        return found

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        hits = hits_of(node)
        return self.generic_visit(node) if hits is None else count_of(hits)


def count_of(mask: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(mask, "count_nonzero", ast.Load()), [], [])


def _comparison(node: ast.Compare) -> ast.expr | None:
    """a < b < c as (a < b) & (b < c)."""
    sides = [node.left, *node.comparators]
    if not all(isinstance(op, _NUMERIC) for op in node.ops):
        return None
    if any(isinstance(side, _NO_TENSORS) or _is_no_number(side) for side in sides):
        return None
    sides = [as_tensor(side) for side in sides]
    return _joined(
        [ast.Compare(left, [op], [right]) for left, op, right in zip(sides, node.ops, sides[1:])],
        ast.BitAnd())


def _is_no_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float)


def _joined(parts: list[ast.expr | None], op: ast.operator) -> ast.expr | None:
    if any(part is None for part in parts):
        return None
    found, *others = parts
    for part in others:
        found = ast.BinOp(found, op, part)
    return found


def _all_of(make: Callable[[ast.expr, ast.expr], ast.expr], node: ast.Call) -> ast.expr | None:
    """(a == b).all() for torch.equal(a, b) and a.equal(b)."""
    pair = list(node.args)
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "torch":
        pair.insert(0, node.func.value)
    if len(pair) != 2 or node.keywords:
        return None
    return ast.Call(ast.Attribute(make(*pair), "all", ast.Load()), [], [])


def _is_bool_name(node: ast.expr, function: ast.AST | None) -> bool:
    """Whether `node` is a variable that a condition was last assigned to."""
    if not isinstance(node, ast.Name) or function is None:
        return False
    values = [
        statement.value
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign) and statement.lineno < node.lineno
        and node.id in map(ast.unparse, statement.targets)
    ]
    last = values[-1] if values else None
    return isinstance(last, ast.Compare) or name_of_call(last) in _GIVES_BOOL


# ---------------------------------------------------------------------------- values
def _returned(node: ast.If, after: tuple[ast.stmt, ...]) -> tuple[ast.expr, ast.expr] | None:
    """The results of `if c: return a` and of its other way."""
    others = node.orelse or list(after[:1])
    if len(node.body) != 1 or len(others) != 1:
        return None
    if not all(isinstance(part, ast.Return) and part.value for part in (*node.body, *others)):
        return None
    pair = as_tensor(node.body[0].value), as_tensor(others[0].value)
    return pair if _can_choose(*pair) else None


def _can_choose(first: ast.expr, second: ast.expr) -> bool:
    if isinstance(first, ast.Tuple) and isinstance(second, ast.Tuple):
        is_even = len(first.elts) == len(second.elts)
        return is_even and all(map(_can_choose, first.elts, second.elts))
    return _is_value(first) and _is_value(second)


def _where_text(test: ast.expr, first: ast.expr, second: ast.expr) -> str:
    if isinstance(first, ast.Tuple):
        return ", ".join(_where_text(test, *pair) for pair in zip(first.elts, second.elts))
    return ast.unparse(_where(test, first, second))


def _where(test: ast.expr, first: ast.expr, second: ast.expr) -> ast.expr:
    if ast.unparse(first) == ast.unparse(second):
        return first
    where = ast.Attribute(ast.Name("torch", ast.Load()), "where", ast.Load())
    return ast.Call(where, [test, first, second], [])


def _arms(node: ast.If, function: ast.AST | None) -> dict[str, ast.expr] | None:
    """What each target of an `if` is afterwards, in terms of the values before; None if it does
    more than assign."""
    test = as_condition(node.test, function)
    first, second = _block(node.body, function), _block(node.orelse, function)
    if test is None or first is None or second is None:
        return None
    bound = _bound(function, node.lineno)
    found = {}
    for target in {**first, **second}:
        kept = ast.parse(target, mode="eval").body
        if bound is not None and isinstance(kept, ast.Name) and target not in bound:
            if target not in first or target not in second:
                return None  # made on one way only: there is no value to keep on the other
        found[target] = _where(test, first.get(target, kept), second.get(target, kept))
    return found


def _block(statements: Iterable[ast.stmt], function: ast.AST | None) -> dict[str, ast.expr] | None:
    made: dict[str, ast.expr] = {}
    for statement in statements:
        if isinstance(statement, ast.Pass):
            continue
        if isinstance(statement, ast.If):
            pairs = _arms(statement, function)
        else:
            pair = _assignment(statement)
            pairs = None if pair is None else {ast.unparse(pair[0]): pair[1]}
        if pairs is None or not all(map(_is_value, pairs.values())):
            return None
        made.update({name: _Put(made).visit(copy.deepcopy(value)) for name, value in pairs.items()})
    return made


def _assignment(node: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """Target and value of `x = v`, `x += v`, `x: T = v`."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    elif isinstance(node, ast.AugAssign):
        target = node.target
        value = ast.BinOp(ast.parse(ast.unparse(target), mode="eval").body, node.op, node.value)
    else:
        return None
    return (target, as_tensor(value)) if isinstance(target, ast.Name | ast.Attribute) else None


def _is_value(node: ast.expr) -> bool:
    """Whether `node` may be a tensor or a number, computed without an effect that can be seen."""
    if isinstance(node, _NO_TENSORS) or _is_no_number(node) or _is_bool(node):
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.left, _NO_TENSORS):
            return False
        if isinstance(part, ast.BinOp) and isinstance(part.right, _NO_TENSORS):
            return False  # containers are put together
        name = name_of_call(part)
        if isinstance(part, _NO_VALUES) or name in _EFFECTS:
            return False
        if name.endswith("_") and not name.endswith("__"):  # torch's mark of a write in place
            return False
    return True


def _is_bool(node: ast.expr) -> bool:
    """A flag that Python itself will ask the truth of."""
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


class _Put(ast.NodeTransformer):
    """Puts expressions in the place of the targets that were assigned them."""

    def __init__(self, made: dict[str, ast.expr]):
        self.made = made

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.made:
            return copy.deepcopy(self.made[ast.unparse(node)])
        return self.generic_visit(node)


def _bound(function: ast.AST | None, line: int) -> frozenset[str] | None:
    """The names that `function` has bound before `line`; None outside a function: any may be."""
    if function is None:
        return None
    return frozenset(_bound_names(function, line))


def _bound_names(function: ast.AST, line: int) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line:
            yield node.id


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
