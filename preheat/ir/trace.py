"""Traces: what a capture knows. Sources, guards, recipes, nodes and points.

    entry(2 args)
      s0 = entry                      the compiled function or module
      s1 = arg 0
      s3 = s0.__dict__["weight"]
      node 0
        guard s1 tensor f32[8, 128]
        guard s3 tensor f32[128]
        body  (s1, s3) -> %2
        return %2

Everything here is data: indices into tables, primitives and names. What has no name that another
process could resolve stands in `Captured.objects` and is referred to as `Live(k)`; a trace with a
`Live` cannot be stored, and says so.
"""

from typing import Any, TypeAlias, Union

from preheat.base.dataclass import dataclass, field
from preheat.base.reasons import explain
from preheat.ir.graph import Graph
from preheat.ir.types import TensorType


# ---------------------------------------------------------------------------- names of objects
@dataclass(frozen=True, slots=True)
class Named:
    """An importable object: `sys.modules[module]`, then the attributes of `qualname` ("" = the module)."""

    module: str
    qualname: str


@dataclass(frozen=True, slots=True)
class Live:
    """Object `index` of `Captured.objects`: known in this process only."""

    index: int


@dataclass(frozen=True, slots=True)
class At:
    """The object that source `index` resolves to."""

    index: int


Constant: TypeAlias = Union[None, bool, int, float, complex, str, bytes, Named, Live, At, tuple["Constant", ...]]


# ---------------------------------------------------------------------------- sources
@dataclass(frozen=True, slots=True)
class Source:
    """Where an outside object comes from: a root, or one step from source `parent`.

    roots (parent -1)
      entry            the compiled function or module itself
      arg i            positional argument i, as passed
      kwarg name       keyword argument, as passed
      named (m, q)     an importable object;  live k: object k of this process
      slot k           a runtime value of the trace (host result, carried value)
      number scalar    the value of a Scalar, whose symbols "s12" are the numbers of sources before it
    steps
      attr name        getattr(o, name) of a C-level attribute that runs no Python (fn.__defaults__)
      dict             object.__getattribute__(o, "__dict__"), or the namespace of a module
      item key         o[key] of an exact dict (or subclass, by dict.__getitem__), list or tuple
      key i            the i-th key of a dict, in order
      type             type(o)
      class name       the raw attribute that lookup along type `o`'s MRO finds
      cell             o.cell_contents
      closure i        o.__closure__[i]
      globals          o.__globals__
      len              len(o) of an exact container
      element          the number in a plain tensor of the CPU without axes
      size i, stride i   o.shape[i] and o.stride(i) of a plain tensor
      result (n, *a)   what o's method n gives for the constant arguments a, asked anew on every check;
                       n "": o itself is called; an argument ("=", name, c) is passed by keyword.
                       Only for ContextVar.get, levels of loggers, functools.lru_cache and weak
                       references: cheap and without effect
    """

    parent: int
    kind: str
    key: Constant = None


# ---------------------------------------------------------------------------- guards
@dataclass(frozen=True, slots=True)
class Guard:
    """A claim about memory at the start of a node. `source` indexes `Trace.sources`, or is -1.

    An outside int or float that is not pinned by `value` but by its `type` is a number that each run
    has anew: symbol of Scalars, input of bodies.

    kind         expected                claim
    type         Named | Live            type(o) is it
    is           Named | Live | At | None, True, False, Ellipsis    o is it
    isnot        At | Named | Live       o is not it (two outside objects that differed)
    value        primitive               same type and equal, floats by bits
    tensor       TensorFacts             an exact tensor (or subclass `cls`) with these facts; sizes and
                                         strides that are Scalars are left to other guards
    code         digest (str)            a function whose __code__ has it (bytecode, names, constants);
                                         in the process that captured: whose __code__ is the same object
    absent       key                     key not in dict
    contains     (Constant, bool)        (c in o) is it, for exact dict, set, frozenset
    keys         tuple                   the dict's keys, in order
    len          int                     len(o)
    set          tuple                   the set's elements, as a set
    noattr       name                    no such C-level attribute
    class        (name, Constant)        raw attribute along the MRO of type `o`; Named/Live/At/primitive,
                                         or the string "<absent>"
    mro          tuple of Named | Live   type(o)'s... the type o's MRO
    isinstance   (Constant, bool)        isinstance(o, c) is it (ABCs)
    issubclass   (Constant, bool)        issubclass(o, c) is it (ABCs asked about an object made in the call)
    ambient      (name, Constant)        a row of bridge/ambient (source -1)
    test         (Graph, sources, bool)  the graph, run on the tensors of these sources, gives one bool
                                         element, which is it (source -1): a branch on inputs, such as mask.all()
    distinct     (source, ...)           no two of them are one object (source -1)
    alias        ((source, ...), ...)    tensors of one group overlap, of different groups do not (source -1)
    """

    source: int
    kind: str
    expected: Any


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is checked of a tensor on every call. `cls` None: exactly torch.Tensor or Parameter by `type` guard."""

    type: TensorType
    requires_grad: bool
    is_view_of_inference: bool = False  # is_inference()
    is_conj: bool = False
    is_neg: bool = False
    layout: str = "strided"
    dispatch_keys: str = ""  # text of the key set where it matters; "" = ordinary dense


@dataclass(frozen=True, slots=True)
class Code:
    """A function whose bytecode the machine ran. `where` is its source; `digest` its code's."""

    where: int
    digest: str
    file: str = ""
    line: int = 0
    name: str = ""


# ---------------------------------------------------------------------------- recipes
@dataclass(frozen=True, slots=True)
class Step:
    """One step of a recipe; its result is numbered by its place.

    value k          the k-th output of the node's body
    source s         the object that source s resolved to
    const c          a Constant
    number n         the value of a Scalar over sources (as the source `number`) that cannot fail
    list, tuple, set, frozenset   args: steps
    dict             args: key step, value step, ...
    new              args: class step, then arguments of cls.__new__
    call             args: callable step, then positional arguments
    append           args: container step, item step            (no result)
    setitem          args: container, key, value                (no result)
    setattr          args: object, name (str), value            (object.__setattr__; no result)
    update_dict      args: object, name (str), value            (o.__dict__[name] = v; no result)
    write            args: object, name (str), value            (C's setattr; an effect, no result)
    delete           args: object, name (str)                   (C's delattr; an effect)
    delitem          args: container, key                       (an effect)
    empty_cell       args: cell                                 (an effect)
    mutate           args: container, method (str), number of positional steps, *steps, then pairs of
                     keyword name (str) and step                (a method of C's own; an effect)
    ambient          args: name (str), Constant                 (a row of bridge/ambient is set; an effect)
    cell             args: () or (content,); set_cell: cell, content
    advance          args: iterator step, how many elements it skips (no result)
    code             args: function step, place (int) among the constants of its code object
    function         args: code step, globals step, name, defaults, closure cells ..., see recipes
    method           args: function step, self step
    """

    kind: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rebuilds a value: `steps` in order, then `result` is the number of the step returned.

    The steps of a node's end include its effects on outside objects, in program order: setitem,
    append, set_cell and the steps marked so, whose target is a `source` step. They are done after
    the body, one after another; a step before them only makes or names objects."""

    steps: tuple[Step, ...]
    result: int


# ---------------------------------------------------------------------------- nodes and points
@dataclass(frozen=True, slots=True)
class Point:
    """A place in the program where the machine can take over, and where other nodes begin.

    `snapshot` rebuilds the open frames, outermost first, from `slots` runtime values (its `value`
    steps): tensors, objects from outside, objects that have escaped. Fresh objects that nobody else
    has seen are rebuilt, not carried. Its frames stand before an instruction that is executed anew;
    with `has_answer`, the last slot is what that instruction's host call gives, and is not called
    again. Equal states of a program are equal points, so a loop leads back to where it was.
    `moving`: slots with lists whose length changes from call to call; `keys`: slots with numbers
    that are another key or index in each call.
    """

    snapshot: Recipe
    slots: int
    has_answer: bool = False
    moving: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The call is over; the recipe gives its result."""

    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Host:
    """An opaque call, done again on every call: the recipe gives (function, args, kwargs, *slots).

    `point` takes the slots and then the answer. `where`: file, line and function of the program
    that makes the call.
    """

    recipe: Recipe
    point: Point
    where: tuple[str, int, str] = ("", 0, "")


@dataclass(frozen=True, slots=True)
class Goto:
    """The node's writes are done, and what follows reads them: the recipe gives (*slots,)."""

    recipe: Recipe
    point: Point


End: TypeAlias = Union[Return, Host, Goto]


@dataclass(frozen=True, slots=True)
class Node:
    """Guards on memory as the node starts; tensor ops; then the steps of `end.recipe`, in order.

    inputs   for each input of `body`, the source that gives the tensor (or number)
    body     a graph at level aten, or None when the node runs no tensor op
    """

    guards: tuple[Guard, ...]
    inputs: tuple[int, ...]
    body: Graph | None
    end: End


@dataclass(frozen=True, slots=True)
class Signature:
    """The shape of a call: number of positional arguments, names of keyword arguments in order.

    rest   from this place on the positional arguments of a call, however many, are one tuple, which is the
           last of the trace's; -1: each is an argument
    """

    positional: int
    keywords: tuple[str, ...] = ()
    rest: int = -1

    def packed(self, args: tuple) -> tuple:
        """The positional arguments of a call as the trace has them."""
        return args if self.rest < 0 else (*args[:self.rest], args[self.rest:])


@dataclass(frozen=True, slots=True)
class Trace:
    """One node and what leads to its objects. The arguments of a node that does not start at the
    entry are the slots of its point, all positional."""

    signature: Signature
    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
    codes: tuple[Code, ...] = ()
    python: str = ""  # "3.11": bytecode and layouts are of one minor version


@dataclass
class Captured:
    """A trace with the live objects it names in this process. `why_not_stored` is "" when portable.

    start    the point where its node begins; None: the entry
    why      what ended the node before the call was over
    """

    trace: Trace
    objects: tuple[Any, ...] = ()
    why_not_stored: str = ""
    start: Point | None = None
    why: "Break | None" = None


@dataclass(frozen=True, slots=True)
class Break:
    """Why a call (or a part of it) was not captured: a row of `base/reasons.py` with its place."""

    reason: str
    detail: str
    file: str
    line: int
    code: str  # the source line
    hint: str


def break_of(reason: str, detail: str, after: Break | None = None) -> Break:
    """A break at the line that `after` is about; by default no line is to blame."""
    where = ("", 0, "") if after is None else (after.file, after.line, after.code)
    return Break(reason, detail, *where, explain(reason, detail)[1])


@dataclass
class Outcome:
    """What a capture yields: the program's own result or exception, its nodes, its breaks.

    nodes    in the order they ran; each but the last leads to the start of the next. After a break
             the nodes before it stand, and the program ran on unwatched from the last one's point.
    goes_on  (point, values): the capture stopped at a point that the caller knows already; the call
             is not over, and goes on from there
    """

    result: Any = None
    error: BaseException | None = None
    nodes: tuple[Captured, ...] = ()
    goes_on: tuple[Point, list[Any]] | None = None
    breaks: tuple[Break, ...] = ()
    counts: dict[str, Any] = field(default_factory=dict)  # ops, frames, nodes, pinned

    @property
    def captured(self) -> Captured | None:
        """The node of a call that is one node, from the entry to its return; else None."""
        whole = len(self.nodes) == 1 and not self.breaks and self.goes_on is None
        return self.nodes[0] if whole and self.error is None else None
