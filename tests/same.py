"""The one comparison: a compiled program does what eager does, in everything that can be seen.

    same(fn, x, y)                 three calls of `fn(x, y)`, eager and compiled, on deep copies
    same_program(make, calls=4)    make() -> Program: fresh state a side, mutations in between

Compared after every call: the result or the exception (type, message, cause), the arguments, the
state of the module, whatever the program asks to watch, what was printed, and the generators of
torch, Python and numpy; at the end, all results again. Of a tensor: dtype, sizes, strides, class,
requires_grad, value, and which other tensors share its storage and where. Of objects: type,
content, and which are one and the same.

Values: equal bits pass, whatever is not floating must be equal; else the largest error against a
float64 run of the same program is at most twice eager's (three times for 16-bit floats), or the
elements are within torch's own tolerance for the dtype. Places of NaN and infinity must agree.
"""

import collections
import contextlib
import copy
import functools
import io
import os
import random
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

import preheat
from preheat.base.events import Event, bus


@dataclass
class Program:
    """A callable with the arguments of each call, and what else to look at afterwards.

    between   before call i, `between[i](program)` may change anything the program reaches
    """

    call: Callable[..., Any]
    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    watch: Any = None
    between: Mapping[int, Callable[["Program"], Any]] = field(default_factory=dict)


@dataclass
class Seen:
    """What the compiled side did: change of `preheat.counters()`, and what ran eager."""

    counters: dict[str, int]
    is_captured: bool
    breaks: tuple[str, ...]


def same(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 3,
    captured: bool | None = None,
    grad: bool = False,
    settings: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Seen:
    """Calls `fn(*args, **kwargs)` eager and compiled, on deep copies of `fn` and the arguments."""

    def make() -> Program:
        call, copied, keywords = copy.deepcopy((fn, args, kwargs))
        return Program(call, copied, keywords)

    return same_program(make, calls=calls, captured=captured, grad=grad, settings=settings)


def same_program(
    make: Callable[[], Program],
    *,
    calls: int = 3,
    captured: bool | None = None,
    grad: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Seen:
    """Raises AssertionError naming the first difference between eager and compiled.

    captured   True: no call may break (run eager);  False: one must;  None: either
    settings   keyword arguments of `preheat.compile`
    """
    eager, _ = _run(_made(make), calls, grad, lambda call: call)
    before, breaks = preheat.counters(), []
    unsubscribe = bus.subscribe(lambda event: breaks.append(_one_line(event)), {"break"})
    try:
        compiled, error = _run(
            _made(make), calls, grad, lambda call: _compile(call, settings or {})
        )
    finally:
        unsubscribe()
    after = preheat.counters()
    counts = {name: after[name] - before[name] for name in after}
    reference = functools.cache(lambda: _float64(make, calls, grad))  # where bits differ
    for number, (expected, found) in enumerate(zip(eager, compiled)):
        where = f"call {number}" if number < calls else "all results at the end"
        try:
            _compare(where, expected, found, lambda: (reference() or {number: ()})[number])
        except AssertionError as difference:
            raise difference from error
    is_captured = not breaks and counts["captures"] > 0
    if captured is not None and is_enabled():
        assert is_captured == captured, (
            f"expected {'a capture' if captured else 'a break'}: {breaks}"
        )
    return Seen(counts, is_captured, tuple(breaks))


def is_enabled() -> bool:
    """False where PREHEAT_DISABLE=1 makes `compile` the identity: a check of the tests alone."""
    return os.environ.get("PREHEAT_DISABLE") != "1"


# ---------------------------------------------------------------------------- running
def _compile(call: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    options = {"cache": False, **settings.get("options", {})}
    return preheat.compile(call, **{**settings, "options": options})


def _made(make: Callable[[], Program]) -> Program:
    """A program whose random initial state is every other's."""
    _seed(0)
    return make()


def _run(
    program: Program,
    calls: int,
    grad: bool,
    wrap: Callable,
) -> tuple[list[list[tuple]], BaseException | None]:
    """The picture after each call, then one of all results together; the last exception."""
    call = wrap(program.call)
    pictures, results, last_error = [], [], None
    for number in range(calls):
        if number in program.between:
            program.between[number](program)
        _seed(number)
        printed = io.StringIO()
        with torch.set_grad_enabled(grad), contextlib.redirect_stdout(printed):
            try:
                result = call(*program.args, **program.kwargs)
            except Exception as error:
                result, last_error = raised(error), error
        results.append(result)
        state = program.call if isinstance(program.call, torch.nn.Module) else None
        pictures.append(
            picture(
                {
                    "result": result,
                    "args": program.args,
                    "kwargs": dict(program.kwargs),
                    "state": state,
                    "watch": program.watch,
                    "printed": printed.getvalue(),
                    "random": _generators(),
                }
            )
        )
    pictures.append(picture({"results": results}))
    return pictures, last_error


def _one_line(event: Event) -> str:
    data = event.data
    place = f"{data['file']}:{data['line']}: {data['code'].strip()}"
    return f"{data['reason']}: {data['detail']} at {place}"


@dataclass(frozen=True)
class Raised:
    """An exception as a result: compared by type, message, arguments and what it came from."""

    type: type
    message: str
    values: tuple[str, ...] = ()
    cause: "Raised | None" = None
    context: "Raised | None" = None
    notes: tuple[str, ...] = ()


def raised(error: BaseException | None) -> Raised | None:
    """What can be seen of an exception; of the one in handling, only where a traceback shows it."""
    if error is None:
        return None
    context = None if error.__suppress_context__ else error.__context__
    return Raised(
        type(error), str(error), tuple(map(repr, error.args)), raised(error.__cause__),
        raised(context), tuple(getattr(error, "__notes__", ())),
    )


def _seed(number: int) -> None:
    torch.manual_seed(1000 + number)
    random.seed(1000 + number)
    numpy.random.seed(1000 + number)


def _generators() -> tuple:
    """States of the generators, as values that compare."""
    numpy_state = numpy.random.get_state()
    return (
        hash(torch.get_rng_state().numpy().tobytes()),
        *(
            hash(state.numpy().tobytes())
            for state in (torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())
        ),
        hash(random.getstate()),
        hash((numpy_state[1].tobytes(), *numpy_state[2:])),
    )


def _float64(make: Callable[[], Program], calls: int, grad: bool) -> list[list[tuple]] | None:
    """The pictures of the program in float64, or None where it cannot run so."""
    program = _made(make)
    try:
        if isinstance(program.call, torch.nn.Module):
            program.call.double()
        program.args, program.kwargs = _doubled(program.args), _doubled(dict(program.kwargs))
        pictures, _ = _run(program, calls, grad, lambda call: call)
    except Exception:  # no reference: the comparison falls back on torch's tolerances
        return None
    return pictures


def _doubled(value: Any) -> Any:
    """The containers of `value` with every floating tensor in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(_doubled(part) for part in value)
    if type(value) is dict:
        return {key: _doubled(part) for key, part in value.items()}
    return value


# ---------------------------------------------------------------------------- pictures
def picture(value: Any) -> list[tuple]:
    """Everything that can be seen of `value`: rows (path, fact), in a fixed order.

    Objects and storages are numbered by first appearance, so equal pictures have equal aliasing.
    """
    walk = _Walk()
    walk.visit("", value)
    return walk.finish()


class _Walk:
    def __init__(self) -> None:
        self.rows: list[tuple] = []
        self.objects: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is used twice

    def visit(self, path: str, value: Any) -> None:
        if value is None or isinstance(value, _PLAIN):
            self.rows.append((path, "value", value if value == value else "nan"))
            return
        if not _is_value(value):
            if id(value) in self.objects:
                self.rows.append((path, "same as", self.objects[id(value)]))
                return
            self.objects[id(value)] = len(self.objects)
        self.alive.append(value)
        if isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, _OPAQUE):
            self.rows.append((path, "opaque", getattr(value, "__qualname__", type(value).__name__)))
        else:
            self._object(path, value)

    def _tensor(self, path: str, value: torch.Tensor) -> None:
        facts: dict[str, Any] = {
            "class": type(value).__name__,
            "dtype": value.dtype,
            "sizes": tuple(value.shape),
            "requires_grad": value.requires_grad,
            "device": str(value.device),
            "layout": value.layout,
        }
        plain = value
        if value.layout is torch.strided:
            facts["strides"] = value.stride()
            facts["conj, neg"] = (value.is_conj(), value.is_neg())
            if value.numel():
                key = value.untyped_storage()._cdata
                number = self.storages.setdefault(key, len(self.storages))
                self.offsets[number] = min(
                    self.offsets.get(number, 1 << 62), value.storage_offset()
                )
                self.rows.append((path, "storage", (number, value.storage_offset())))
        else:
            plain = value.to_dense()
        self.rows.append((path, "tensor", tuple(facts.items())))
        self.rows.append((path, "data", plain.detach().clone().cpu()))
        if value.is_leaf and value.grad is not None:
            self.visit(path + ".grad", value.grad)

    def _object(self, path: str, value: Any) -> None:
        self.rows.append((path, "type", type(value).__name__))
        if isinstance(value, Mapping) or isinstance(value, dict):
            self.rows.append((path, "length", len(value)))
            for number, (key, part) in enumerate(value.items()):
                self.visit(f"{path}.key{number}", key)
                self.visit(
                    f"{path}[{key!r}]" if isinstance(key, _PLAIN) else f"{path}[{number}]", part
                )
        elif isinstance(value, (list, tuple, collections.deque)):
            self.rows.append((path, "length", len(value)))
            for number, part in enumerate(value):
                self.visit(f"{path}[{number}]", part)
        elif isinstance(value, (set, frozenset)):
            self.rows.append((path, "elements", sorted(map(repr, value))))
        elif isinstance(value, numpy.ndarray):
            self.rows.append((path, "array", (str(value.dtype), value.shape, value.tobytes())))
        elif isinstance(value, BaseException):
            self.visit(f"{path}.args", value.args)
        elif isinstance(value, range | slice):
            self.rows.append((path, "range", repr(value)))
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
            return
        elif isinstance(value, types.MethodType):
            self.visit(f"{path}.__self__", value.__self__)
            return
        if hasattr(value, "__dict__") and not isinstance(value, type):
            for name, part in sorted(vars(value).items()):
                if "_hooks" in name and isinstance(part, dict):
                    part = list(part.values())  # keys count the hooks of the whole process
                self.visit(f"{path}.{name}", part)

    def _function(self, path: str, value: types.FunctionType) -> None:
        """The name, what it closes over, its defaults; not its globals."""
        self.rows.append((path, "function", value.__qualname__))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            with contextlib.suppress(ValueError):  # an empty cell
                self.visit(f"{path}.{name}", cell.cell_contents)
        self.visit(f"{path}.__defaults__", value.__defaults__)
        self.visit(f"{path}.__kwdefaults__", value.__kwdefaults__)

    def finish(self) -> list[tuple]:
        """Offsets count from the first element that anything sees of the storage."""
        return [
            (path, kind, (fact[0], fact[1] - self.offsets[fact[0]]))
            if kind == "storage"
            else (path, kind, fact)
            for path, kind, fact in self.rows
        ]


_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OPAQUE = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.GeneratorType,
    types.CodeType,
    torch.Generator,
)


def _is_value(value: Any) -> bool:
    """Whether it is immutable through and through: Python itself shares such constants, or not."""
    if type(value) in (tuple, torch.Size, frozenset):
        return all(part is None or isinstance(part, _PLAIN) or _is_value(part) for part in value)
    return type(value) in (range, slice)


# ---------------------------------------------------------------------------- comparing
def _compare(
    where: str,
    eager: list[tuple],
    compiled: list[tuple],
    reference: Callable[[], Sequence[tuple]],
) -> None:
    def truth(path: str) -> torch.Tensor | None:
        rows = (fact for found, kind, fact in reference() if (found, kind) == (path, "data"))
        return next(rows, None)

    for expected, found in zip(eager, compiled):
        path, kind, fact = expected
        assert found[:2] == (path, kind), (
            f"{where}: eager has {path} {kind} {fact}, compiled {found}"
        )
        if kind == "data":
            _compare_values(f"{where}: {path}", fact, found[2], functools.partial(truth, path))
        else:
            assert found[2] == fact, f"{where}: {path} {kind}: eager {fact}, compiled {found[2]}"
    assert len(eager) == len(compiled), (
        f"{where}: eager shows {len(eager)} facts, compiled {len(compiled)}: "
        f"{(eager if len(eager) > len(compiled) else compiled)[min(len(eager), len(compiled))]}"
    )


def _compare_values(
    where: str,
    eager: torch.Tensor,
    compiled: torch.Tensor,
    reference: Callable[[], torch.Tensor | None],
) -> None:
    if _bits(eager) == _bits(compiled):
        return
    if not (eager.is_floating_point() or eager.is_complex()):
        assert torch.equal(eager, compiled), f"{where}: eager {eager}, compiled {compiled}"
        return
    is_complex = eager.is_complex()
    if is_complex:
        eager, compiled = _parts(eager), _parts(compiled)
    dtype, eager, compiled = eager.dtype, eager.double(), compiled.double()
    finite = eager.isfinite()
    assert _equal_with_nan(
        eager.masked_fill(finite, 0), compiled.masked_fill(compiled.isfinite(), 0)
    ), f"{where}: NaN or infinity differ: eager {eager}, compiled {compiled}"
    difference = (eager - compiled).masked_fill(~finite, 0).abs()
    absolute, relative = _TOLERANCE.get(dtype, (0.0, 0.0))
    is_close = difference <= absolute + relative * eager.masked_fill(~finite, 0).abs()
    if bool(is_close.all()):
        return
    truth = reference()
    if truth is not None and is_complex:
        truth = _parts(truth) if truth.is_complex() else None
    if is_no_worse(eager, compiled, truth, finite, dtype):
        return
    worst = int(difference.flatten().argmax())
    raise AssertionError(
        f"{where}: differs by {difference.max().item():.3g} at element {worst}: eager "
        f"{eager.flatten()[worst].item():.9g}, compiled {compiled.flatten()[worst].item():.9g}"
        + ("" if truth is None else f", float64 {truth.flatten()[worst].item():.9g}")
    )


def is_no_worse(
    eager: torch.Tensor,
    compiled: torch.Tensor,
    truth: torch.Tensor | None,
    finite: torch.Tensor,
    dtype: torch.dtype,
) -> bool:
    """Whether `compiled` is as near to the truth as `eager` is, up to the factor of the dtype.

    A reference far from eager itself is of another program (other random numbers): no proof.
    """
    if truth is None or truth.shape != eager.shape or not truth.is_floating_point():
        return False
    truth = truth.double()
    if not torch.equal(truth.isfinite(), finite):
        return False
    errors = [
        float((side - truth).masked_fill(~finite, 0).abs().max()) for side in (eager, compiled)
    ]
    unit = torch.finfo(dtype).eps * float(truth.masked_fill(~finite, 0).abs().max())
    if errors[1] <= unit:
        return True
    if errors[0] > 1e4 * unit:
        return False
    factor = 3 if dtype in (torch.float16, torch.bfloat16) else 2
    return errors[1] <= factor * errors[0] + unit


def _equal_with_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.masked_fill(a.isnan(), 0), b.masked_fill(b.isnan(), 0)
    )


def _bits(value: torch.Tensor) -> bytes:
    """The elements in order; views of another sign or conjugate are made real."""
    value = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(value.reshape(-1).view(torch.uint8).cpu().numpy()) if value.numel() else b""


def _parts(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj())


# torch.testing's own tolerances: (absolute, relative)
_TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-5, 1e-3),
    torch.bfloat16: (1e-5, 1.6e-2),
    torch.float32: (1e-5, 1.3e-6),
    torch.float64: (1e-7, 1e-7),
}
