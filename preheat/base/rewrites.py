"""Rewrites: the line that breaks a graph, written so that it does not, with the program's names.

    rewrite(source, 3, "data_dependent_branch")          source line 3: if mask.any(): x = x * 2
        -> "x = torch.where(mask.any(), x * 2, x)  # both sides are computed"

Text in, text out: the source is parsed, never run. `RULES` are tried in order; the first whose
reasons hold the one given and that knows the statement answers. What no rule knows gives "", and
the hint of the reason's row stands.

Guarantees: a text that parses (the head of a loop or a comment, where that is all), and that gives
for tensors what the statement gave; what it costs or changes besides (both sides of a choice are computed, an error has another type, a variable is bound
anew where `+=` wrote in place) is a comment after it.
"""

import ast
import copy
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from preheat.base import choices
from preheat.base.choices import (
    as_tensor, count_of, hits_of, is_mask, is_method, name_of_call, nonzero_of, number_of,
)
from preheat.base.spots import Spot, spots


class Rule(NamedTuple):
    """`make` gives the text for a spot, or ""; `reasons` are rows of `reasons.py`."""

    reasons: tuple[str, ...]
    make: Callable[[Spot], str]


def rewrite(source: str, line: int, reason: str, column: int = -1) -> str:
    """What to write for the statement at `column` (see `spots`) of line `line` of `source`, which broke
    with `reason`; "" if unknown."""
    rules = [rule for rule in RULES if reason in rule.reasons]
    for spot in spots(source, line, column) if rules else ():
        for rule in rules:
            text = rule.make(spot)
            if text:
                return text
    return ""


def hint_for(source: str, line: int, reason: str, general: str, column: int = -1) -> str:
    """The rewrite of the statement as a hint that people read, or the `general` hint."""
    text = rewrite(source, line, reason, column)
    if not text:
        return general
    return f"instead: {text}" if "\n" not in text else "instead:\n" + textwrap.indent(text, "    ")


# ---------------------------------------------------------------------------- numbers of tensors
def _number(spot: Spot) -> str:
    """s = x.max().item()   ->  s = x.max(), if only arithmetic uses s"""
    node = spot.statement
    found = [part for part in _expressions(node) if number_of(part) is not None]
    if not found or spot.function is None:
        return ""
    above = _parents(spot.function)
    takes: ast.stmt | None = None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        uses = _uses(spot.function, node.targets[0].id, node)
        takes = node if uses and all(_is_arithmetic(use, above) for use in uses) else None
    if not all(_is_arithmetic(part, above, takes) for part in found):
        return ""
    return ast.unparse(as_tensor(node))


def _is_arithmetic(
    node: ast.AST, above: dict[ast.AST, ast.AST], takes: ast.stmt | None = None,
) -> bool:
    """Whether `node` is an operand of tensor arithmetic, which takes a tensor of one element as it
    takes a number; or the value of the assignment `takes`, of which the like is known."""
    parent = above.get(node)
    if parent is takes is not None:
        return True
    if isinstance(parent, ast.BinOp):
        other = parent.right if parent.left is node else parent.left
        if isinstance(other, ast.Constant) or number_of(other) is not None:
            return _is_arithmetic(parent, above, takes)  # of numbers alone: who takes the result?
    elif isinstance(parent, ast.UnaryOp):
        return _is_arithmetic(parent, above, takes)
    elif isinstance(parent, ast.keyword):
        if not _takes_tensors(above[parent]):
            return False
    elif not _takes_tensors(parent) or parent.func is node:
        return False
    child = parent
    while (outer := above.get(child)) is not None and not isinstance(child, ast.stmt):
        if isinstance(outer, ast.JoinedStr | ast.Compare | ast.Dict | ast.Lambda):
            return False
        if isinstance(outer, ast.Subscript) and outer.slice is child:
            return False
        if isinstance(outer, ast.If | ast.While | ast.Assert):
            return False
        if name_of_call(outer) in _TAKES_NUMBERS:
            return False
        child = outer
    return True


def _takes_tensors(call: ast.AST) -> bool:
    """Whether `call` is of a function of torch's name for it, and not of math, numpy or Python."""
    if name_of_call(call) not in _TAKES_TENSORS or not isinstance(call.func, ast.Attribute):
        return False
    return ast.unparse(call.func.value) not in ("math", "np", "numpy", "operator")


def _bounded_range(spot: Spot) -> str:
    """for i in range(t.item()):   ->  for i in range(n):  # n = t.item(), in the caller"""
    node = spot.statement
    if not isinstance(node, ast.For) or name_of_call(node.iter) != "range":
        return ""
    for place, arg in enumerate(node.iter.args):
        if number_of(arg) is not None:
            name = _new_name(spot, "steps")
            args = [ast.unparse(other) for other in node.iter.args]
            given, args[place] = args[place], name
            return (
                f"for {ast.unparse(node.target)} in range({', '.join(args)}):"
                f"  # an argument: the caller passes {name}={given}")
    return ""


def _hits(spot: Spot) -> str:
    """n = len(m.nonzero())   ->  n = m.count_nonzero()"""
    def put(part: ast.AST) -> ast.expr | None:
        mask = hits_of(part)
        return None if mask is None else count_of(mask)

    return _replaced(spot, put)


# ---------------------------------------------------------------------------- sizes by value
def _masked(spot: Spot) -> str:
    """x[m].sum()   ->  torch.where(m, x, 0).sum()"""
    masks = _masks(spot)

    def reduced(part: ast.AST) -> ast.expr | None:
        return _reduced(part, masks)

    def kept(part: ast.AST) -> ast.expr | None:
        pair = _selection(part, masks)
        return None if pair is None else _parsed("torch.where({0}, {1}, 0)", *pair)

    text = _replaced(spot, reduced)
    if text:
        return f"{text}  # the mask has the sizes of what it selects from"
    text = _replaced(spot, kept)
    return f"{text}  # keeps its size: zero where the mask is False" if text else ""


def _masks(spot: Spot) -> frozenset[str]:
    """The indices of the statement that are masks: those that compare, or else the only one that
    may be."""
    found = [
        part.slice for part in _expressions(spot.statement)
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load)
    ]
    sure = {ast.unparse(index) for index in found if is_mask(index, spot.function)}
    maybe = {ast.unparse(index) for index in found if isinstance(index, ast.Name | ast.Attribute)}
    return frozenset(sure or (maybe if len(maybe) == 1 else ()))


def _reduced(node: ast.AST, masks: frozenset[str]) -> ast.expr | None:
    """A reduction of selected elements, as one of all elements where the others do not count."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "0":
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            pair = _selection(node.value.value, masks)
            return None if pair is None else _parsed("{0}.sum()", *pair)
    name = name_of_call(node)
    if name not in _REDUCED or node.keywords:
        return None
    if isinstance(node.func, ast.Name) or ast.unparse(node.func.value) == "torch":
        taken = node.args
    else:
        taken = [node.func.value, *([] if name == "size" else node.args)]
    pair = _selection(taken[0], masks) if len(taken) == 1 else None
    return None if pair is None else _parsed(_REDUCED[name], *pair)


def _selection(node: ast.AST, masks: frozenset[str]) -> tuple[ast.expr, ast.expr] | None:
    """Mask and tensor of `x[m]`, if m is one of `masks`, and of `torch.masked_select(x, m)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return (node.slice, node.value) if ast.unparse(node.slice) in masks else None
    if is_method(node, "masked_select"):
        of_torch = ast.unparse(node.func.value) == "torch"
        taken = node.args if of_torch else [node.func.value, *node.args]
        return (taken[1], taken[0]) if len(taken) == 2 and not node.keywords else None
    return None


def _nonzero(spot: Spot) -> str:
    """m.nonzero()   ->  torch.nonzero_static(m, size=128)"""
    def put(part: ast.AST) -> ast.expr | None:
        mask = nonzero_of(part)
        return None if mask is None else _parsed("torch.nonzero_static({0}, size=128)", mask)

    text = _replaced(spot, put)
    return f"{text}  # a size that is enough; the rest is filled with -1" if text else ""


# ---------------------------------------------------------------------------- host calls
def _optimizer(spot: Spot) -> str:
    """opt = torch.optim.AdamW(net.parameters())   ->  # once, outside the compiled function: ..."""
    for part in _expressions(spot.statement):
        if isinstance(part, ast.Call) and _KEEPS_STATE.fullmatch(ast.unparse(part.func)):
            made = ast.unparse(spot.statement if not hasattr(spot.statement, "body") else part)
            return f"# once, outside the compiled function, which then only uses it: {made}"
    return ""


def _report(spot: Spot) -> str:
    """print("loss", loss.item())   ->  return loss as well; the caller prints it"""
    node = spot.statement
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return ""
    call = node.value
    text = ast.unparse(call.func)
    if not (text == "print" or _LOGGING.fullmatch(text)):
        return ""
    told = [
        ast.unparse(part) for arg in _told(call) if not isinstance(arg, ast.Constant)
        for part in _tensors_of(arg)
    ]
    if not told:
        return f"# before or after the call, not in it: {ast.unparse(call)}"
    return f"return ..., {', '.join(dict.fromkeys(told))}  # and in the caller: {ast.unparse(call)}"


def _told(call: ast.Call) -> Iterator[ast.expr]:
    for arg in call.args:
        if isinstance(arg, ast.JoinedStr):
            yield from (part.value for part in arg.values if isinstance(part, ast.FormattedValue))
        else:
            yield arg


def _tensors_of(node: ast.expr) -> list[ast.expr]:
    """What a caller needs for `node`: itself, where it is arithmetic that takes tensors as it takes
    their numbers; or else the tensors whose numbers are taken in it: h of round(h.item(), 3)."""
    found = [part for part in ast.walk(node) if _taken(part)]
    above = _parents(node)
    is_whole = all(
        isinstance(outer, ast.BinOp | ast.UnaryOp | ast.Compare)
        for part in found for outer in _outer(part, above))
    taken = [node] if is_whole else found
    return [part.func.value if is_method(part, *_CONVERT) else as_tensor(part) for part in taken]


def _outer(node: ast.AST, above: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """The expressions around `node`, but those that take the number of what they hold."""
    while (node := above.get(node)) is not None:
        if not _taken(node):
            yield node


def _taken(node: ast.AST) -> bool:
    """Whether `node` takes the values out of a tensor: `x.item()`, `float(x)`, `x.tolist()`."""
    return number_of(node) is not None or is_method(node, *_CONVERT)


def _draw(spot: Spot) -> str:
    """x * random.random()   ->  x * torch.rand(())"""
    def put(part: ast.AST) -> ast.expr | None:
        if not isinstance(part, ast.Call) or part.keywords:
            return None
        form = _DRAWS.get((ast.unparse(part.func), len(part.args)))
        return None if form is None else _parsed(form, *part.args)

    text = _replaced(spot, put)
    return f"{text}  # draws from torch's generator" if text else ""


def _clock(spot: Spot) -> str:
    """t = time.time()   ->  t = now  # an argument: the caller passes now=time.time()"""
    given: list[str] = []
    name = _new_name(spot, "now")

    def put(part: ast.AST) -> ast.expr | None:
        if not isinstance(part, ast.Call) or not _CLOCKS.fullmatch(ast.unparse(part.func)):
            return None
        given.append(ast.unparse(part))
        return ast.Name(name, ast.Load())

    text = _replaced(spot, put)
    return f"{text}  # an argument: the caller passes {name}={given[0]}" if text else ""


def _array(spot: Spot) -> str:
    """np.log(x.numpy())   ->  torch.log(x)"""
    found = _Arrays()
    node = found.visit(copy.deepcopy(_header(spot.statement)))
    if found.count == 0 or _NUMPY.search(ast.unparse(node)):
        return ""
    return ast.unparse(node)


class _Arrays(ast.NodeTransformer):
    """Calls of numpy on converted tensors, as calls of torch on the tensors."""

    def __init__(self) -> None:
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = name_of_call(node)
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name == "numpy" and owner and not node.args:
            return node.func.value
        if name in ("detach", "cpu") and owner and not node.args:
            return node
        if owner in ("np", "numpy") and name in ("asarray", "array") and len(node.args) == 1:
            return node.args[0]
        if owner in ("np", "numpy") and name in _ARRAYS:
            self.count += 1
            keywords = [
                ast.keyword(_KEYWORDS.get(word.arg, word.arg), word.value) for word in node.keywords
            ]
            return ast.Call(_parsed(f"torch.{_ARRAYS[name]}"), node.args, keywords)
        is_back = owner == "torch" and name in ("from_numpy", "tensor", "as_tensor")
        if is_back and len(node.args) == 1 and not node.keywords:
            if isinstance(node.args[0], ast.Call | ast.BinOp | ast.Name):
                return node.args[0]
        return node


def _conversion(spot: Spot) -> str:
    """return y.tolist()   ->  return y  # the caller converts it: .tolist()"""
    node = spot.statement
    if not isinstance(node, ast.Return):
        return ""
    names: list[str] = []

    def put(part: ast.AST) -> ast.expr | None:
        if not is_method(part, *_CONVERT):
            return None
        names.append(part.func.attr)
        return part.func.value

    text = _replaced(spot, put)
    return f"{text}  # the caller converts it: .{names[0]}()" if text else ""


# ---------------------------------------------------------------------------- writes and results
def _counter(spot: Spot) -> str:
    """self.calls += 1   ->  self.calls.add_(1)  # a buffer"""
    node = spot.statement
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add | ast.Sub):
        return ""
    target = node.target
    if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "self":
        return ""
    verb = "add_" if isinstance(node.op, ast.Add) else "sub_"
    return (
        f"{ast.unparse(target)}.{verb}({ast.unparse(node.value)})"
        f"  # in __init__: self.register_buffer({target.attr!r}, torch.tensor(0))")


def _collected(spot: Spot) -> str:
    """seen.append(y)   ->  return ..., y  # the caller does seen.append"""
    node = spot.statement
    call = node.value if isinstance(node, ast.Expr) else node
    if not is_method(call, "append", "extend", "add") or len(call.args) != 1:
        return ""
    return f"return ..., {ast.unparse(call.args[0])}  # and in the caller: {ast.unparse(call)}"


def _kept_number(spot: Spot) -> str:
    """losses.append(loss.item())   ->  losses.append(loss)  # a tensor"""
    node = spot.statement
    call = node.value if isinstance(node, ast.Expr) else node
    if not is_method(call, "append") or len(call.args) != 1 or number_of(call.args[0]) is None:
        return ""
    kept = ast.unparse(as_tensor(call.args[0]))
    return f"{ast.unparse(call.func)}({kept})  # a tensor: make it a number where it is read"


def _view(spot: Spot) -> str:
    """x.unsqueeze_(0)   ->  x = x.unsqueeze(0)"""
    owners: list[str] = []

    def put(part: ast.AST) -> ast.expr | None:
        if not is_method(part, *_VIEWS):
            return None
        owners.append(ast.unparse(part.func.value))
        found = copy.deepcopy(part)
        found.func.attr = part.func.attr.removesuffix("_")
        return found

    text = _replaced(spot, put)
    if text and isinstance(spot.statement, ast.Expr):
        return f"{owners[0]} = {text}" if owners[0].isidentifier() else ""
    return text


def _generator(spot: Spot) -> str:
    """return (f(x) for x in xs)   ->  return [f(x) for x in xs]"""
    scope = spot.statement if isinstance(spot.statement, ast.FunctionDef) else spot.function
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Return) and isinstance(node.value, ast.GeneratorExp):
            made = ast.ListComp(node.value.elt, node.value.generators)
            return ast.unparse(ast.Return(made))
    return ""


# ---------------------------------------------------------------------------- tables
_VALUES = ("data_dependent_branch", "data_dependent_number", "data_dependent_shape")
_HOST = ("host_call", "tensor_escape", "opaque_argument", "data_dependent_number")
RULES: tuple[Rule, ...] = (
    Rule((*_HOST, "own_write_read"), _optimizer),
    Rule(_HOST, _report),
    Rule(_VALUES, lambda spot: choices.check(spot.statement, spot.function)),
    Rule(_VALUES, lambda spot: choices.choice(spot.statement, spot.after, spot.function)),
    Rule(_VALUES, lambda spot: choices.loop(spot.statement, spot.function)),
    Rule(_VALUES, _bounded_range),
    Rule(_VALUES, _hits),
    Rule(("data_dependent_number",), _number),
    Rule(("data_dependent_number",), _kept_number),
    Rule(("data_dependent_shape",), _nonzero),
    Rule(("data_dependent_shape",), _masked),
    Rule(_HOST, _array),
    Rule(_HOST, _conversion),
    Rule(_HOST, _draw),
    Rule(_HOST, _clock),
    Rule(("write_outside",), _counter),
    Rule(("write_outside",), _collected),
    Rule(("metadata_write",), _view),
    Rule(("no_recipe",), _generator),
)
# Calls that take a tensor of one element where they take a number.
_TAKES_TENSORS = frozenset("""
    add sub mul div true_divide pow clamp clamp_min clamp_max where masked_fill maximum minimum
    remainder fmod atan2 lerp add_ sub_ mul_ div_ masked_fill_
""".split())
_TAKES_NUMBERS = frozenset("range print str repr format len int float bool list round abs".split())
_REDUCED = {
    "sum": "torch.where({0}, {1}, 0).sum()",
    "mean": "torch.where({0}, {1}, 0).sum() / {0}.sum()",
    "prod": "torch.where({0}, {1}, 1).prod()",
    **{name: "torch.where({0}, {1}, -torch.inf)." + f"{name}()" for name in ("max", "amax")},
    **{name: "torch.where({0}, {1}, torch.inf)." + f"{name}()" for name in ("min", "amin")},
    "any": "({1} & {0}).any()",
    "all": "({1} | ~{0}).all()",
    **{name: "{0}.sum()" for name in ("numel", "len", "size")},
}
_LOGGING = re.compile(
    r"(?:(?:self\.)?_?(?:log|logger|LOG|LOGGER|logging)\.)"
    r"(?:debug|info|warning|warn|error|critical|exception|log)|warnings\.warn")
# What is made once and has state from step to step.
_KEEPS_STATE = re.compile(
    r"(?:.*\.)?optim\.(?:lr_scheduler\.|swa_utils\.)?[A-Z]\w*|(?:.*\.)?GradScaler"
    r"|SGD|ASGD|Adam|AdamW|NAdam|RAdam|Adamax|Adagrad|Adadelta|Adafactor|RMSprop|Rprop|LBFGS|Muon")
_CLOCKS = re.compile(
    r"time\.(?:time|perf_counter|monotonic|process_time)(?:_ns)?"
    r"|(?:datetime\.)?datetime\.(?:now|utcnow)")
_NUMPY = re.compile(r"\b(?:np|numpy)\b|\.numpy\(")
_DRAWS = {
    ("random.random", 0): "torch.rand(())",
    ("random.uniform", 2): "torch.empty(()).uniform_({0}, {1})",
    ("random.randint", 2): "torch.randint({0}, {1} + 1, ())",
    ("random.randrange", 1): "torch.randint(0, {0}, ())",
    ("random.gauss", 2): "torch.randn(()) * {1} + {0}",
    ("random.normalvariate", 2): "torch.randn(()) * {1} + {0}",
    **{(f"{np}.random.{name}", count): f"torch.{name}({', '.join(['{0}', '{1}', '{2}'][:count])})"
       for np in ("np", "numpy") for name in ("rand", "randn") for count in (1, 2, 3)},
}
_ARRAYS = {
    **{name: name for name in """
        exp log sqrt abs sin cos tan tanh sinh cosh floor ceil sum mean prod where maximum minimum
        sign square exp2 log2 log10 log1p expm1 isnan isinf isfinite matmul outer einsum cumsum
        argmax argmin argsort stack any all std var zeros_like ones_like
    """.split()},
    "max": "amax", "min": "amin", "clip": "clamp", "concatenate": "cat", "power": "pow",
    "absolute": "abs",
}
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "a_min": "min", "a_max": "max"}
_CONVERT = ("tolist", "numpy")
_VIEWS = frozenset(("unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_"))


# ---------------------------------------------------------------------------- parts of a statement
def _header(node: ast.stmt) -> ast.AST:
    """What of a statement is on its own lines: of a compound one, its test or what it iterates."""
    for name in ("test", "iter"):
        if hasattr(node, name) and hasattr(node, "body"):
            return getattr(node, name)
    return ast.Pass() if hasattr(node, "body") else node


def _expressions(node: ast.stmt) -> Iterator[ast.AST]:
    return ast.walk(_header(node))


def _replaced(spot: Spot, put: Callable[[ast.AST], ast.expr | None]) -> str:
    """The statement with the outermost expressions that `put` knows replaced; "" if there is none,
    or if the statement has a body."""
    if hasattr(spot.statement, "body"):
        return ""
    change = _Replace(put)
    node = change.visit(copy.deepcopy(spot.statement))
    return ast.unparse(node) if change.count else ""


class _Replace(ast.NodeTransformer):
    def __init__(self, put: Callable[[ast.AST], ast.expr | None]):
        self.put, self.count = put, 0

    def visit(self, node: ast.AST) -> ast.AST:
        found = self.put(node) if isinstance(node, ast.expr) else None
        if found is None:
            return self.generic_visit(node)
        self.count += 1
        return found


def _parsed(form: str, *parts: ast.expr) -> ast.expr:
    """The expression `form`, whose {0}, {1} are `parts`."""
    texts = [
        f"({ast.unparse(part)})" if not isinstance(part, _ATOMS) else ast.unparse(part)
        for part in parts
    ]
    return ast.parse(form.format(*texts), mode="eval").body


_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def _parents(node: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}


def _uses(function: ast.AST, name: str, made: ast.stmt) -> list[ast.AST]:
    return [
        node for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        and node.lineno > (made.end_lineno or made.lineno)
    ]


def _new_name(spot: Spot, name: str) -> str:
    """`name`, or a longer one if the function has it."""
    scope = spot.function or spot.statement
    taken = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name)}
    taken |= {node.arg for node in ast.walk(scope) if isinstance(node, ast.arg)}
    return name if name not in taken else f"{name}_given"
