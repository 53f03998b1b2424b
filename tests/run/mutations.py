"""A small world that guards can speak of, and a table of what may change in it between two calls.

Each row of `MUTATIONS` is (name, change, breaks): `change(world)` alters the world or the arguments,
`breaks` says whether a guard on everything reachable must fail afterwards. The second kind of row
(breaks False) changes what no guard speaks of, or replaces an object by an equal one.
Ambient changes enter contexts on `world.stack`; close it when done.
"""

import contextlib
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_GLOBALS = "scale_of_module"


@dataclass
class World:
    """The target of a call, its arguments, and names for what mutations change."""

    target: Any
    args: list
    kwargs: dict
    classes: dict[str, type]
    space: dict[str, Any]  # the globals of `target.function`
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def arguments(self) -> tuple:
        return (*self.args, *self.kwargs.values())


def world() -> World:
    """A new world: its classes, functions and globals are its own."""
    classes = _classes()
    module = types.ModuleType("world_of_guards")
    function = _function(module.__dict__, classes)
    model = classes["Model"](classes, function)
    one, two = torch.arange(6.0).reshape(2, 3), torch.zeros(4, dtype=torch.int64)
    args = [one, [two, 2, "key"], (torch.ones(2, 2), 0.5), 3, None, "text", 1 << 70]
    return World(
        model,
        args,
        {"scale": 1.5, "mask": torch.ones(3, dtype=torch.bool)},
        classes,
        module.__dict__,
    )


def _classes() -> dict[str, type]:
    class Base:
        scale = 2
        bias_name = "bias"

    class Mixin:
        pass

    class Config(Base):
        def __init__(self):
            self.ratio, self.name, self.size, self.flag, self.nothing = 0.5, "gelu", 4, True, None
            self.numbers = [1, 2.5, "three", [4]]
            self.table = {"a": 1, "b": 2.5}
            self.pair = (1, ("x", None))
            self.zero, self.nan = 0.0, float("nan")

        def forward(self):
            return self.ratio

    class Point:
        __slots__ = ("x", "y", "z")

        def __init__(self):
            self.x, self.y = 1, [2.0]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.dropout = 0.1

        def forward(self, x):
            return self.norm(self.linear(x))

    class Model(nn.Module):
        def __init__(self, classes, function):
            super().__init__()
            self.layers = nn.ModuleList([classes["Block"](), classes["Block"]()])
            self.config, self.point, self.function = (
                classes["Config"](),
                classes["Point"](),
                function,
            )
            self.tags, self.order = {"a", "b"}, OrderedDict(a=1, b=2)
            self.deep = torch.zeros(1, 2, 1, 2, 1, 2)
            self.part = torch.zeros(8)[2:6]

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x * self.config.ratio

    return {c.__name__: c for c in (Base, Mixin, Config, Point, Block, Model)}


def _function(space: dict[str, Any], classes: dict[str, type]) -> Callable:
    text = (
        "def make(cell, other):\n"
        "    def function(x, factor=2.0, *, shift=1):\n"
        "        return x * factor + shift + cell + scale_of_module + len(other) + not_defined\n"
        "    return function\n"
    )
    space[_GLOBALS] = 3
    exec(text, space)
    return space["make"](7, [1])


Change = Callable[[World], None]


def _run(text: str) -> Change:
    """Runs `text` with m (the model), c (its config), f (its function), w (the world)."""

    def change(w: World) -> None:
        names = {
            "w": w, "m": w.target, "c": w.target.config, "f": w.target.function, "torch": torch, "nn": nn,
            "types": types, "block": w.target.layers[0], **w.classes,
        }
        exec(text, names)

    return change


def _enter(make: Callable[[], Any]) -> Change:
    """Enters a context for as long as the world is used."""
    return lambda w: w.stack.enter_context(make())


@contextlib.contextmanager
def _setting(setter: Callable, new: Any, old: Any):
    setter(new)
    try:
        yield
    finally:
        setter(old)


@contextlib.contextmanager
def _watching_lines():
    """A tool of sys.monitoring (Python 3.12) that is called for every line."""
    monitoring, tool = sys.monitoring, 3
    monitoring.use_tool_id(tool, "watcher")
    monitoring.register_callback(tool, monitoring.events.LINE, lambda *event: None)
    monitoring.set_events(tool, monitoring.events.LINE)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


_TEXT_CHANGES: dict[str, tuple[str, bool]] = {
    # plain attributes
    "replace a float": ("c.ratio = 0.25", True),
    "replace by an equal float": ("c.ratio = float('0.5')", False),
    "minus zero": ("c.zero = -0.0", True),
    "another NaN": ("import struct; c.nan = struct.unpack('<d', struct.pack('<Q', 0x7ff8000000000001))[0]", True),
    "True becomes 1": ("c.flag = 1", True),
    "an int becomes a float": ("c.size = 4.0", True),
    "None becomes 0": ("c.nothing = 0", True),
    "replace a string": ("c.name = 'relu'", True),
    "an equal string": ("c.name = ''.join(['ge', 'lu'])", False),
    "delete an attribute": ("del c.ratio", True),
    "add the absent attribute": ("c.absent_name = 1", True),
    "add another attribute": ("c.something_else = 1", False),
    "object.__setattr__": ("object.__setattr__(c, 'ratio', 9.0)", True),
    "write through __dict__": ("c.__dict__['ratio'] = 9.0", True),
    "vars().update": ("vars(c).update(ratio=9.0)", True),
    "replace __dict__": ("c.__dict__ = {**c.__dict__, 'ratio': 9.0}", True),
    "replace __dict__ by an equal one": ("c.__dict__ = dict(c.__dict__)", False),
    "write and write back": ("old = c.ratio; c.ratio = 1.0; c.ratio = old", False),
    # classes
    "class attribute": ("Base.scale = 3", True),
    "class attribute, equal": ("Base.scale = 2", False),
    "class attribute deleted": ("del Base.scale", True),
    "class attribute hidden by a subclass": ("Config.scale = 5", True),
    "absent class attribute appears in the base": ("Base.not_there = 1", True),
    "method replaced": ("Config.forward = lambda self: 1", True),
    "__bases__ assigned": ("Config.__bases__ = (Mixin, Base)", False),
    "base with the attribute first": ("Mixin.scale = 9; Config.__bases__ = (Mixin, Base)", True),
    "__class__ assigned": ("c.__class__ = type('Other', (Config,), {})", True),
    "class of a module assigned": ("block.__class__ = type('Other', (Block,), {})", True),
    "instance hides a method": ("c.__dict__['forward'] = 1", False),
    # lists, dicts, tuples, sets
    "list item": ("c.numbers[0] = 5", True),
    "list item, nested": ("c.numbers[3][0] = 5", True),
    "list append": ("c.numbers.append(1)", True),
    "list pop": ("c.numbers.pop()", True),
    "list replaced by an equal one": ("c.numbers = list(c.numbers)", False),
    "list cleared and filled again": ("n = list(c.numbers); c.numbers.clear(); c.numbers.extend(n)", False),
    "list grown and shrunk": ("c.numbers.extend(range(100)); del c.numbers[4:]", False),
    "dict item": ("c.table['a'] = 2", True),
    "dict item deleted": ("del c.table['a']", True),
    "dict key added": ("c.table['z'] = 1", True),
    "dict: the absent key": ("c.table['absent_key'] = 1", True),
    "dict: other order": ("c.table['a'] = c.table.pop('a')", True),
    "dict cleared": ("c.table.clear()", True),
    "dict update with the same": ("c.table.update(a=1)", False),
    "ordered dict: other order": ("m.order.move_to_end('a')", True),
    "tuple replaced": ("c.pair = (1, ('x', 2))", True),
    "tuple replaced by an equal one": ("c.pair = eval('(1, (\"x\", None))')", False),
    "set: element added": ("m.tags.add('c')", True),
    "set: element exchanged": ("m.tags.remove('a'); m.tags.add('z')", True),
    "set: removed and added": ("m.tags.remove('a'); m.tags.add('a')", False),
    # slots
    "slot": ("m.point.x = 2", True),
    "slot deleted": ("del m.point.x", True),
    "empty slot filled": ("m.point.z = 1", True),
    "list in a slot": ("m.point.y[0] = 3.0", True),
    # functions
    "defaults": ("f.__defaults__ = (3.0,)", True),
    "defaults removed": ("f.__defaults__ = None", True),
    "keyword defaults": ("f.__kwdefaults__['shift'] = 2", True),
    "keyword defaults replaced": ("f.__kwdefaults__ = {'shift': 2}", True),
    "cell content": ("f.__closure__[0].cell_contents = 8", True),
    "cell emptied": ("del f.__closure__[0].cell_contents", True),
    "list in a cell": ("f.__closure__[1].cell_contents.append(2)", True),
    "code": ("f.__code__ = f.__code__.replace(co_name='other')", True),
    "code on another line": ("f.__code__ = f.__code__.replace(co_firstlineno=500)", False),
    "global": ("w.space['scale_of_module'] = 4", True),
    "global deleted": ("del w.space['scale_of_module']", True),
    "absent global defined": ("w.space['not_defined'] = 4", True),
    "another global": ("w.space['unrelated'] = 4", False),
    # modules
    "submodule swapped for an equal one": ("import copy; m.layers[1] = copy.deepcopy(m.layers[1])", False),
    "submodule swapped": ("m.layers[1].linear = nn.Linear(3, 4)", True),
    "submodule appended": ("m.layers.append(nn.Linear(3, 3))", True),
    "eval": ("m.eval()", True),
    "hook registered": ("block.register_forward_hook(lambda *a: None)", True),
    "hook registered and removed": ("block.register_forward_hook(lambda *a: None).remove()", False),
    "parameter removed": ("block.linear.bias = None", True),
    "parameter replaced by an equal one": ("block.linear.bias = nn.Parameter(torch.zeros(3))", False),
    "parameter becomes a buffer": ("del block.linear.bias; block.linear.register_buffer('bias', torch.zeros(3))", True),
    # tensors that keep their identity
    "data": ("block.linear.weight.data = torch.ones(3, 3)", False),
    "data of another dtype": ("block.linear.weight.data = torch.ones(3, 3, dtype=torch.float64)", True),
    "data of another shape": ("block.linear.weight.data = torch.ones(4, 3)", True),
    "data of other strides": ("block.linear.weight.data = torch.ones(3, 3).t()", True),
    "half": ("m.half()", True),
    "requires_grad_": ("block.linear.weight.requires_grad_(False)", True),
    "resize_": ("block.count.resize_(2)", True),
    "t_": ("w.args[0].t_()", True),
    "as_strided_": ("m.deep.as_strided_((1, 2, 1, 2, 1, 2), (8, 1, 4, 2, 2, 4))", True),
    "as_strided_, inline": ("m.part.as_strided_((4,), (1,), 0)", False),
    "set_": ("block.count.set_(torch.zeros((), dtype=torch.int64))", False),
    "contents": ("block.linear.weight.data.zero_()", False),
    "class of a parameter": ("block.linear.weight.__class__ = torch.Tensor", True),
    "swap_tensors": ("torch.utils.swap_tensors(m.part, torch.zeros(4, dtype=torch.int32))", True),
    "in-place op of another requires_grad": ("m.part.mul_(torch.ones(4, requires_grad=True))", True),
    "view whose base gets a gradient": ("m.part._base.mul_(torch.ones(8, requires_grad=True))", True),
    # arguments
    "argument: equal tensor": ("w.args[0] = torch.zeros(2, 3)", False),
    "argument: another shape": ("w.args[0] = torch.zeros(3, 3)", True),
    "argument: other strides": ("w.args[0] = torch.zeros(3, 2).t()", True),
    "argument: another rank": ("w.args[0] = torch.zeros(2, 3, 1)", True),
    "argument: another dtype": ("w.args[0] = torch.zeros(2, 3, dtype=torch.int32)", True),
    "argument: meta": ("w.args[0] = torch.zeros(2, 3, device='meta')", True),
    "argument: sparse": ("w.args[0] = torch.zeros(2, 3).to_sparse()", True),
    "argument: requires_grad": ("w.args[0] = torch.zeros(2, 3, requires_grad=True)", True),
    "argument: not a leaf": ("w.args[0] = torch.zeros(2, 3, requires_grad=True) * 1", True),
    "argument: parameter": ("w.args[0] = nn.Parameter(torch.zeros(2, 3), requires_grad=False)", True),
    "argument: inference": ("w.args[0] = torch.inference_mode()(torch.zeros)(2, 3)", True),
    "argument: negative bit": ("w.args[0] = torch._neg_view(torch.zeros(2, 3))", True),
    "argument: zero tensor": ("w.args[0] = torch._efficientzerotensor(2, 3)", True),
    "argument: functional": ("w.args[0] = torch._to_functional_tensor(torch.zeros(2, 3))", True),
    "argument: subclass": ("w.args[0] = torch.zeros(2, 3).as_subclass(type('T', (torch.Tensor,), {}))", True),
    "argument: no tensor": ("w.args[0] = [1, 2, 3]", True),
    "argument: None for a tensor": ("w.args[0] = None", True),
    "argument: the same tensor twice": ("w.args[1][0] = w.args[0]", True),
    "argument: list item": ("w.args[1][1] = 3", True),
    "argument: equal list": ("w.args[1] = [torch.ones(4, dtype=torch.int64), 2, 'key']", False),
    "argument: longer list": ("w.args[1].append(1)", True),
    "argument: shorter list": ("w.args[1].pop()", True),
    "argument: empty list": ("w.args[1] = []", True),
    "argument: tuple for a list": ("w.args[1] = tuple(w.args[1])", True),
    "argument: tensor for a list": ("w.args[1] = torch.zeros(3)", True),
    "argument: number for a list": ("w.args[1] = 5", True),
    "argument: list subclass": ("w.args[1] = type('L', (list,), {})(w.args[1])", True),
    "argument: tensor in a list": ("w.args[1][0] = torch.zeros(5, dtype=torch.int64)", True),
    "argument: equal tuple": ("w.args[2] = (torch.zeros(2, 2), float('0.5'))", False),
    "argument: tuple's float": ("w.args[2] = (w.args[2][0], 0.25)", True),
    "argument: tuple's float is an int": ("w.args[2] = (w.args[2][0], 1)", True),
    "argument: int": ("w.args[3] = 4", True),
    "argument: int is True": ("w.args[3] = True", True),
    "argument: int is a float": ("w.args[3] = 3.0", True),
    "argument: None is False": ("w.args[4] = False", True),
    "argument: string": ("w.args[5] = 'other'", True),
    "argument: equal string": ("w.args[5] = ''.join(['te', 'xt'])", False),
    "argument: big int": ("w.args[6] = 1 << 71", True),
    "argument: equal big int": ("w.args[6] = int(str(1 << 70))", False),
    "argument: negative big int": ("w.args[6] = -(1 << 70)", True),
    "keyword: float": ("w.kwargs['scale'] = 2.5", True),
    "keyword: equal float": ("w.kwargs['scale'] = float('1.5')", False),
    "keyword: tensor": ("w.kwargs['mask'] = torch.ones(3)", True),
}

_AMBIENT_CHANGES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast cache": lambda: _setting(torch.set_autocast_cache_enabled, False, True),
    "default dtype": lambda: _setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device("meta"),
    "set_default_device": lambda: _setting(torch.set_default_device, "cpu", None),
    "function mode": torch.overrides.TorchFunctionMode,
    "function overrides": torch._C.DisableTorchFunction,
    "deterministic": lambda: _setting(torch._C._set_deterministic_algorithms, True, False),
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "forward AD": torch.autograd.forward_ad.dual_level,
    "forward AD off": lambda: torch.autograd.forward_ad._set_fwd_grad_enabled(False),
    "attention kernels": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "tf32 in products": lambda: _setting(torch._C._set_cublas_allow_tf32, True, False),
    "tf32 in convolutions": lambda: _setting(torch._C._set_cudnn_allow_tf32, False, True),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "profile function": lambda: _setting(sys.setprofile, lambda *event: None, None),
    "trace function": lambda: _setting(sys.settrace, lambda *event: None, None),
    "torch profiler": lambda: torch.autograd.profiler.profile(),
    **({"monitoring": _watching_lines} if hasattr(sys, "monitoring") else {}),
}

MUTATIONS: tuple[tuple[str, Change, bool], ...] = (
    *((name, _run(text), breaks) for name, (text, breaks) in _TEXT_CHANGES.items()),
    *((name, _enter(make), True) for name, make in _AMBIENT_CHANGES.items()),
)
NAMES = tuple(name for name, _, _ in MUTATIONS)
