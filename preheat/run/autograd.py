"""Autograd: joins the values of a differentiable node to the graph that torch builds.

    exits = Join(wiring)(source, {0: x, 1: w}, values)
        class 0   h = Node.apply(source, 0, [h], w, x)         h is computed: apply only names it
        class 1   y = Node.apply(source, 1, [y], h)
    y.backward()   ->   Node.backward of class 1, then of class 0

Each class of the body is one `torch.autograd.Function`: edges, hooks, undefined tangents and errors
are torch's own. What the gradients are is asked of the call's `source`: a nested run
(`capture/joint.py`) or compiled code (`run/trained.py`). Views of inputs and of other results are
made here, under autograd, and so are the writes that it sees.

Guarantees: a class holds what it has saved until it has run backward without being kept; what a
formula had saved is checked for in-place changes as torch does it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from preheat.bridge.history import require_version
from preheat.bridge.ops import decode, overload, private
from preheat.ir.training import Exit, Given, Wiring

Tangents = list[torch.Tensor | None]

# Whether the backward that is under way keeps the graph; without the name nothing is let go early.
_is_kept: Callable[[], bool] = private("_C._autograd._get_current_graph_task_keep_graph") or (
    lambda: True)


class Source(Protocol):
    """Where gradients of one call come from."""

    def is_repeatable(self, number: int) -> bool:
        """Whether a class may run backward again, or the source itself refuses when it may not."""

    def saved(self, number: int) -> Sequence[torch.Tensor]:
        """What class `number` keeps for its backward, with torch's checks."""

    def backward(
        self, number: int, tangents: Tangents, saved: list[torch.Tensor], is_kept: bool,
    ) -> "Sequence[torch.Tensor | None] | Progress":
        """The gradients of the class's arguments, or the `Progress` of a backward in stages. `tangents`
        and `saved` are the source's own: it may empty them."""

    def differentiable(
        self, number: int, arguments: Sequence[torch.Tensor], tangents: Tangents,
    ) -> Sequence[torch.Tensor | None]:
        """The same as differentiable functions of arguments and tangents."""


class Node(torch.autograd.Function):
    """One gradient class of one call."""

    boxed_grads_call = True  # tangents come as a list that may be emptied, where torch knows of that

    @staticmethod
    def forward(
        ctx: Any, source: Source, number: int, results: list, inner: Sequence[int],
        apart: tuple | None, *arguments: Any,
    ) -> tuple:
        """`inner`: the places of the arguments that others may give another history. `apart`: if some
        arguments are given to `Later`, of which the last one here comes: all of them, the places of
        those that are here, and the device."""
        ctx.set_materialize_grads(False)
        ctx.source, ctx.number = source, number
        ctx.arguments, ctx.places, ctx.device = (arguments, None, None) if apart is None else apart
        ctx.inner = [(place, ctx.arguments[place]._version) for place in inner]
        ctx.is_repeatable, ctx.own = source.is_repeatable(number), []
        if ctx.is_repeatable:  # what no formula had saved is ours alone, and may be taken again
            ctx.own = source.saved(number)
        else:
            ctx.save_for_backward(*source.saved(number))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple:
        tangents = given[0] if given and type(given[0]) is list else [*given]
        # torch refuses the second look at what was let go, even if that was nothing
        saved, is_kept = [*(ctx.own if ctx.is_repeatable else ctx.saved_tensors)], _is_kept()
        source, number = ctx.source, ctx.number
        if source is None:
            raise RuntimeError(_TWICE)
        if all(tangent is None for tangent in tangents):
            grads = (None,) * len(ctx.arguments)
        elif torch.is_grad_enabled():
            arguments = [*ctx.arguments]
            for place, version in ctx.inner:
                if arguments[place]._version != version:
                    arguments[place] = Rewritten.apply(arguments[place], version)
            grads = source.differentiable(number, arguments, tangents)
        else:
            if not is_kept and not ctx.is_repeatable:
                ctx.maybe_clear_saved_tensors()
                ctx.source, ctx.arguments, ctx.inner = None, (), ()
            grads = source.backward(number, tangents, saved, is_kept)
        if ctx.places is None:
            return None, None, None, None, None, *grads
        progress = grads if type(grads) is Progress else Progress([*grads])
        return None, None, None, None, None, *progress.take(ctx.places), progress.token(ctx.device)


# What `Node.apply` comes to outside of functorch's levels (under which a call is plain Python, and this
# refuses): without a look at each argument from Python, half the time.
_apply = getattr(super(torch.autograd.Function, Node), "apply", Node.apply)


class Later(torch.autograd.Function):
    """Arguments of a class whose gradients come after those of others. Its result is an argument of
    what those others are given to, and carries the `Progress` back in its gradient."""

    @staticmethod
    def forward(ctx: Any, places: Sequence[int], device: torch.device, *arguments: Any) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.places, ctx.device, ctx.count = places, device, len(arguments)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None) -> tuple:
        if token is None:
            return None, None, *(None,) * ctx.count
        grads = token.progress.take(ctx.places)
        return None, None, *grads, *(token,) * (ctx.count - len(grads))


class Progress:
    """The gradients of a class as far as they are there, each given once.

    rest   what is still to run: `run()` gives more of the gradients, or a `Progress`, and has those of the
           arguments at `places`, and they alone
    """

    __slots__ = ("grads", "rest")

    def __init__(self, grads: list[torch.Tensor | None], rest: Any = None):
        self.grads, self.rest = grads, rest

    def take(self, places: Sequence[int]) -> list[torch.Tensor | None]:
        """The gradients of these arguments. Runs what they need."""
        while self.rest is not None and not self.rest.places.isdisjoint(places):
            made = self.rest.run()
            made, self.rest = (made.grads, made.rest) if type(made) is Progress else (made, None)
            for place, grad in enumerate(made):
                if grad is not None:
                    self.grads[place] = grad
        found = [self.grads[place] for place in places]
        for place in places:
            self.grads[place] = None
        return found

    def token(self, device: torch.device) -> torch.Tensor:
        """What brings it to the next `Later`: autograd takes nothing but tensors along."""
        token = torch.empty(0, device=device)
        token.progress = self
        return token


class Before(torch.autograd.Function):
    """A tensor with the history that another has now, and may soon have no more."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent


class Rewritten(torch.autograd.Function):
    """An argument of a class that was written to since: what it has come from then is known no more."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, version: int) -> torch.Tensor:
        ctx.tensor, ctx.version = tensor.detach(), version
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> None:
        require_version(ctx.tensor, ctx.version)


_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they "
    "have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward.")


class Join:
    """Gives the values of a call the histories that `wiring` says.

    groups   of a class whose backward runs in stages: its arguments as their gradients come together
    """

    def __init__(self, wiring: Wiring, groups: Mapping[int, Sequence[Sequence[int]]] = {}):
        self.classes, self.commits, self.exits = wiring.classes, wiring.commits, wiring.exits
        self.groups = groups
        self.before = {
            given.index for arguments, _ in wiring.classes for given in arguments
            if given.kind == "before"}
        self.inner = [
            [place for place, given in enumerate(arguments) if given.kind in ("value", "exit")]
            for arguments, _ in wiring.classes]
        self.views = [view_function(exit) if exit.is_view else None for exit in wiring.exits]

    def __call__(
        self, source: Source, inputs: Mapping[int, Any], values: list,
    ) -> list[torch.Tensor]:
        """The outputs of the call. `values` are those of the division; results of classes among
        them are replaced by what has a history, even if the node begins under `no_grad`."""
        if not torch.is_grad_enabled():
            with torch.enable_grad():
                return self(source, inputs, values)
        joining = _Joining(self, inputs, values)
        for number, (arguments, results) in enumerate(self.classes):
            given, apart = [*map(joining.find, arguments)], None
            if number in self.groups:
                given, apart = _apart(given, self.groups[number])
            own, inner = [values[place] for place in results], self.inner[number]
            made = _apply(source, number, own, inner, apart, *given)
            for place, tensor in zip(results, made):
                values[place] = tensor
            for target, place in self.commits:
                if place in results:
                    inputs[target].copy_(values[place])
        return [joining.leave(place) for place in range(len(self.exits))]


def _apart(arguments: list, groups: Sequence[Sequence[int]]) -> tuple[list, tuple]:
    """What a class is given of its `arguments` if the gradients of the first group come first."""
    token: tuple = ()
    device = arguments[0].device
    for places in reversed(groups[1:]):
        token = (Later.apply(places, device, *(arguments[place] for place in places), *token),)
    return [*(arguments[place] for place in groups[0]), *token], (arguments, groups[0], device)


class _Joining:
    """The tensors of one call while it is joined. (No closures: one that names itself is a cycle,
    which would hold the call's tensors until the collector runs.)"""

    __slots__ = ("join", "inputs", "values", "before", "exits")

    def __init__(self, join: Join, inputs: Mapping[int, Any], values: list):
        self.join, self.inputs, self.values = join, inputs, values
        self.before = {place: Before.apply(_unhooked(inputs[place])) for place in join.before}
        self.exits: list[torch.Tensor | None] = [None] * len(join.exits)

    def find(self, given: Given) -> torch.Tensor:
        kind, index = given.kind, given.index
        if kind == "input":
            return self.inputs[index]
        if kind == "value":
            return self.values[index]
        return self.before[index] if kind == "before" else self.leave(index)

    def leave(self, place: int) -> torch.Tensor:
        """The tensor of an exit: made as a view, under autograd, where it is one."""
        if self.exits[place] is None:
            exit, view = self.join.exits[place], self.join.views[place]
            tensor = self.find(exit.given)
            if view is not None:
                if tensor.requires_grad and not exit.needs_grad:
                    tensor = tensor.detach()
                tensor = view(tensor)
            self.exits[place] = tensor
        return self.exits[place]


def _unhooked(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, which is about to be written to. Of a view with hooks another one: gradients from before the write
    reach its base, but no more its own node, as in eager."""
    base = tensor._base if tensor._is_view() and tensor._backward_hooks else None
    if base is None or base.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg():
        return tensor
    return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def view_function(exit: Exit) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes the view that `exit` is of its tensor."""
    type, offset = exit.type, exit.offset
    steps = [
        (overload(op.name), decode(op.args[1:], ()), {key: decode(arg, ()) for key, arg in op.attrs})
        for op in exit.steps]

    def by_steps(tensor: torch.Tensor) -> torch.Tensor:
        for step, args, attrs in steps:
            tensor = step(tensor, *args, **attrs)
        return tensor

    def by_type(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(type.sizes, type.strides, tensor.storage_offset() + offset)

    return by_steps if steps else by_type
