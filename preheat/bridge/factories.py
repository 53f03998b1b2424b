"""Tensors that C makes of numbers which it takes as plain ones, as one operator of ours that takes symbols.

    torch.hann_window(n)  ->  preheat.made("hann_window", [n], [True], dtype, device)

Windows, frequencies of Fourier transforms, indices of triangles: torch itself makes them on each call.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from preheat.base.dataclass import dataclass
from preheat.base.identity import identity
from preheat.bridge.operators import Operator
from preheat.bridge.ops import overload

_TYPES = frozenset(("dtype", "device"))


@dataclass(frozen=True)
class _Factory:
    """How many sizes a function takes, and the names of the numbers behind them with what they are if they are not given.
    is_last: the sizes come behind these, where no default is. if_not_given: of sizes."""

    name: str
    sizes: tuple[str, ...]
    others: tuple[tuple[str, Any], ...]
    is_last: bool = False
    if_not_given: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in their order."""
        given = tuple(name for name, default in self.others if default is _GIVEN)
        behind = tuple(name for name, default in self.others if default is not _GIVEN)
        return (*given, *self.sizes, *behind) if self.is_last else (*self.sizes, *given, *behind)


_GIVEN = object()  # by the call
_PERIODIC = ("periodic", True)
_WINDOW = ("window_length",)
_TRIANGLE, _MIDDLE = ("row", "col", "offset"), (("offset", 0),)
_ENDS = (("start", _GIVEN), ("end", _GIVEN))
_FACTORIES: dict[Any, _Factory] = {
    torch.hann_window: _Factory("hann_window", _WINDOW, (_PERIODIC,)),
    torch.bartlett_window: _Factory("bartlett_window", _WINDOW, (_PERIODIC,)),
    torch.blackman_window: _Factory("blackman_window", _WINDOW, (_PERIODIC,)),
    torch.hamming_window: _Factory("hamming_window", _WINDOW, (_PERIODIC, ("alpha", 0.54), ("beta", 0.46))),
    torch.kaiser_window: _Factory("kaiser_window", _WINDOW, (_PERIODIC, ("beta", 12.0))),
    torch.fft.fftfreq: _Factory("fft.fftfreq", ("n",), (("d", 1.0),)),
    torch.fft.rfftfreq: _Factory("fft.rfftfreq", ("n",), (("d", 1.0),)),
    torch.tril_indices: _Factory("tril_indices", _TRIANGLE, (), if_not_given=_MIDDLE),
    torch.triu_indices: _Factory("triu_indices", _TRIANGLE, (), if_not_given=_MIDDLE),
    torch.linspace: _Factory("linspace", ("steps",), _ENDS, True),
    torch.logspace: _Factory("logspace", ("steps",), (*_ENDS, ("base", 10.0)), True),
}
_BY_NAME = {factory.name: function for function, factory in _FACTORIES.items()}
_KINDS = frozenset(map(type, _FACTORIES))


def made_of_numbers(
    function: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Any,
) -> tuple[Any, tuple, dict] | None:
    """A call that does the same as `function` of `args` and takes symbols; None of any other function, or call.

    numbers   holds the ids of the objects that are runtime numbers
    """
    factory = _FACTORIES.get(function) if type(function) in _KINDS else None
    if factory is None or not any(identity(arg) in numbers for arg in (*args, *kwargs.values())):
        return None
    names = factory.names
    given = dict(factory.if_not_given) | dict(zip(names, args)) | {
        name: arg for name, arg in kwargs.items() if name not in _TYPES}
    others = [given.get(name, default) for name, default in factory.others]
    is_known = len(args) <= len(names) and given.keys() <= set(names) and given.keys() >= set(factory.sizes)
    if not is_known or any(identity(arg) in numbers for arg in others) or not all(type(n) in (int, float, bool) for n in others):
        return None
    device = kwargs.get("device")
    device = torch.get_default_device() if device is None else torch.device(device)
    sizes = [given[name] for name in factory.sizes]
    return _call, (factory.name, *sizes, others, kwargs.get("dtype"), device), {}


def _call(name: str, *args: Any) -> torch.Tensor:
    *sizes, others, dtype, device = args
    return overload("preheat.made.default")(name, sizes, others, dtype=dtype, device=device)


def _made(
    name: str, sizes: Sequence[int], others: Sequence[Any], *, dtype: torch.dtype | None, device: torch.device | None,
) -> torch.Tensor:
    function, types = _BY_NAME[name], {} if dtype is None else {"dtype": dtype}
    factory = _FACTORIES[function]
    given = dict(zip(factory.sizes, sizes)) | dict(zip((key for key, _ in factory.others), others))
    return function(*(given[key] for key in factory.names), **types, device=device)


OPERATORS = {
    "preheat.made.default": lambda: Operator(
        "made(str name, SymInt[] sizes, Scalar[] others, *, ScalarType? dtype, Device? device) -> Tensor", _made),
}
