"""Calls that do the same as the program's, and take numbers and sizes that are symbols.

    torch.hann_window(n)        ->  preheat.made("hann_window", [n], ..)   (bridge/factories.py)
    torch.tensor([n, 2])        ->  stack([full((), n), full((), 2)])       (bridge/of_numbers.py)
    x[[n, 2]]                   ->  x[torch.tensor([n, 2])]
    layer_norm(x, .., eps=v)    ->  preheat.given_native_layer_norm (bridge/numbered.py)
    dropout(x, p)               ->  x * noise(x.detach(), p)
    n * w, w requires grad      ->  full((), n) * w                         (bridge/weights.py)
    interpolate by a factor     ->  by the sizes that it makes              (bridge/resizing.py)
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from preheat.bridge.composed import asks_of_sizes
from preheat.bridge.composites import spelled_composite
from preheat.bridge.factories import made_of_numbers
from preheat.bridge.integers import counted, of_integers, one_hot, resized
from preheat.bridge.numbered import composed, detach, dropped_out, multiply, noise, numbered
from preheat.bridge.of_numbers import is_index, is_maker, made_by_c, tensor, tensor_maker
from preheat.bridge.resizing import full, spelled_out
from preheat.bridge.steps import whole_layer
from preheat.bridge.symint import reshaped_copy
from preheat.bridge.tensors import PLAIN_TENSORS, Tensor
from preheat.bridge.weights import as_tensor, number_beside
from preheat.capture.guards import Guards
from preheat.capture.native import CALLS
from preheat.capture.observer import GiveUp
from preheat.capture.policies import is_bound, policy
from preheat.capture.recorder import Recorder
from preheat.ir.types import TensorType

SUBSCRIPTS = frozenset((operator.getitem, operator.setitem))


class Spelling:
    """The part of the watcher that spells calls out."""

    numbers: dict[int, Any]
    guards: Guards
    recorder: Recorder
    regions: Any
    symbolic_type: Callable[[Any], TensorType | None]
    call_with_numbers: Callable
    read_known: Callable[[Any], None]
    holds_int: Callable[[Any], bool]
    begin_sizes: Callable[[], None]

    def spelled_out(self, function: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple, dict]:
        """The call itself, or one that does the same and takes numbers that are symbols."""
        maker = tensor_maker(function, args, kwargs)
        if is_maker(function) and args and self.guards.numbers.holds_one(args[0]):
            self.read_known(args[0])
            return (partial(made_by_c, function), args, kwargs) if maker is None else (maker, args, {})
        made = made_of_numbers(function, args, kwargs, self.numbers)
        if made is not None:
            return made
        if function is one_hot and args and type(args[0]) is Tensor and args[0].is_cpu:
            raise GiveUp("data_dependent_number", "one_hot")  # asks which indices there are
        made = self._of_integers(function, args, kwargs)
        if made is not None:
            return made
        made = counted(function, args, kwargs) if any(map(self.holds_int, (*args, *kwargs.values()))) else None
        if made is not None:
            self.begin_sizes()
            return made, args, kwargs
        made = numbered(function, args, kwargs, self.numbers, self.guards.numbers.calculate)
        if made is not None:
            return made
        shown = self.symbolic_type(args[0]) if args and not kwargs else None
        layer = whole_layer(function, args, shown.sizes) if shown is not None else None
        if layer is not None:
            return *layer, kwargs
        sizes = shown.sizes if shown is not None else self._sizes_beside(args)
        found = spelled_out(function, args, sizes) if sizes is not None else None
        if found is None:
            return function, args, kwargs
        op, sizes, others = found
        numbers = self.guards.numbers
        made = args[1] if sizes is None else [numbers.of_size(numbers.normal(n)) for n in sizes]
        return op, (args[0], made, *others), kwargs

    def _of_integers(self, function: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple, dict] | None:
        owner = owner_of(function)
        if any(self.symbolic_type(value) is not None for value in (owner, *args[:1])):
            return None
        if not any(map(self.guards.numbers.holds_one, (*args, *kwargs.values()))):
            return None
        calculate = self.guards.numbers.calculate
        made = resized(function, args, kwargs, self.numbers, calculate)
        if made is not None:
            self.begin_sizes()
            return made
        made = of_integers(function, args, kwargs, self.numbers, calculate)
        if made is not None:
            for arg in args:
                if type(arg) in (list, tuple):
                    self.read_known(arg)
        return made

    def _sizes_beside(self, args: tuple) -> tuple[int, ...] | None:
        """Those of a tensor that is given with sizes that change."""
        is_given = len(args) > 1 and type(args[0]) in PLAIN_TENSORS and self.holds_int(args[1])
        return tuple(args[0].shape) if is_given else None

    def product(self, function: Any, args: tuple, kwargs: dict) -> Callable | None:
        """Of what C makes of other ops, a product, a norm, a recurrent layer: given what turns an argument into
        what C shall see, what spells it out, or the function itself where `folding.py` does."""
        owner = owner_of(function)
        is_method = issubclass(type(owner), Tensor)
        function = getattr(type(owner), function.__name__, None) if is_method else function
        made = composed(function, (owner, *args) if is_method else args, kwargs, self.numbers, self.guards.numbers.calculate)
        if self.recorder.rules is None:
            if made is None:
                return None
            self.begin_sizes()
        made = made or spelled_composite(function, args, kwargs) or (function if asks_of_sizes(function) else None)
        if made is None:
            return None
        return lambda boxed: partial(made, boxed(owner)) if is_method else made

    def as_tensors(self, function: Any, args: tuple) -> tuple:
        """`args` with a tensor for a number that is computed with a tensor that requires grad."""
        place, beside = number_beside(function, args, self.numbers)
        if beside is None or self.regions.present:
            return args
        call = partial(self.call_with_numbers, policy(full), call=CALLS["op"])
        return (*args[:place], as_tensor(call, args[place], beside), *args[place + 1:])

    def with_noise(self, function: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple]:
        """A dropout whose probability changes as a product with noise, which no gradient goes through."""
        p = None if self.regions.present else dropped_out(function, args, kwargs, self.numbers)
        calculate = self.guards.numbers.calculate
        if p is None or not (calculate(operator.gt, (p, 0.0)) and calculate(operator.lt, (p, 1.0))):
            return function, args
        like = CALLS["op"](self, detach, (args[0],), {}, policy(detach))
        made = self.call_with_numbers(policy(full), noise, (like, p), {}, CALLS["op"])
        return multiply, (args[0], made)

    def with_indices(self, function: Any, args: tuple) -> tuple:
        """`args` of a subscript with a tensor for each list of ints of which one changes, as C makes it."""
        if function not in SUBSCRIPTS or type(args[0]) not in PLAIN_TENSORS:
            return args
        parts = args[1] if type(args[1]) is tuple else (args[1],)
        made = [self._index_of(part, args[0].device) if is_index(part) and self.holds_int(part) else part for part in parts]
        if all(map(operator.is_, made, parts)):
            return args
        return args[0], tuple(made) if type(args[1]) is tuple else made[0], *args[2:]

    def _index_of(self, numbers: list, device: Any) -> Tensor:
        return self.call_with_numbers(policy(tensor), tensor, (numbers,), {"device": device}, CALLS["reader"])

    def reshaping(self, owner: Any, shown: Any, boxes: tuple, named: dict) -> tuple | None:
        """The method, and its arguments, by which C reshapes `owner`, a view or a copy: which one
        it is, the rules ask less of the sizes for than C does. None: let it ask."""
        wanted = named.get("shape", boxes[0] if len(boxes) == 1 else boxes)
        wanted = wanted if type(wanted) in (tuple, list) else (wanted,)
        found = self.recorder.rules.reshaped(self.symbolic_type(owner), wanted)
        if found is None:
            return None
        is_view, sizes = found
        return (shown.view, (sizes,), {}) if is_view else (reshaped_copy, (shown, sizes), {})


def owner_of(function: Any) -> Any:
    """The object of a bound method of C."""
    return function.__self__ if is_bound(function) else None
