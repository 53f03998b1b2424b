"""Options, modes and backends: what may be asked for, and what each asks.

    compile(f, options={"recompile_limit": 4})     checked_options -> every option's value
    compile(f, options={"recompile_limits": 4})    UserError: did you mean 'recompile_limit'?

Guarantees that whoever reads options later finds each key with a value of its type.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from preheat.base.errors import UserError, nearest


class Option(NamedTuple):
    """A row of `OPTIONS`. `minimum` and `maximum` bound numbers; a float may be given as an int.
    `choices`: the texts there are, if not any."""

    type: type
    default: Any
    meaning: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()


class Buckets(NamedTuple):
    """One name of option "buckets": inputs are padded to the next of `lengths` (ascending).

    dims    argument -> the axis that is padded;  fill: argument -> what stands in the padding
    """

    lengths: tuple[int, ...]
    dims: dict[str, int]
    fill: dict[str, Any]


class Mode(NamedTuple):
    """A row of `MODES`.

    graphs     plans of a GPU are launched as CUDA graphs where that is safe
    searches   the fastest kernels of a GPU are searched for; a CPU has the default ones
    """

    meaning: str
    graphs: bool = False
    searches: bool = False


OPTIONS: dict[str, Option] = {
    "buckets": Option(
        dict, {}, "inputs are padded to a few lengths, each with a static variant: name -> "
        "{\"lengths\": [64, 128], \"dims\": {\"ids\": 1, \"mask\": 1}, \"fill\": {\"mask\": 0}}"
    ),
    "cache": Option(bool, True, "keep compiled programs in PREHEAT_CACHE_DIR and look there first"),
    "on_miss": Option(
        str, "eager", "what a call does that a sealed function has not been prepared for: it runs "
        "\"eager\", or raises an \"error\"", choices=("eager", "error"),
    ),
    "memory_budget": Option(
        float, 1.0, "in training, the bytes that a forward may keep for its backward, as a share of what "
        "torch's formulas keep: 1 computes again only what costs no more than reading it, 0 all but "
        "random numbers", 0, 1
    ),
    "backward_reads": Option(
        str, "eager", "in training, which arguments and results a compiled backward may read: those that "
        "torch's formulas save (\"eager\"), or \"any\", as torch.compile's: no copies of them nor what "
        "follows from them are kept, but to change one in place before the backward is an error",
        choices=("eager", "any"),
    ),
    "gradient_bucket_mb": Option(
        float, 0.0, "in training, the megabytes of gradients that leave a compiled backward together, as "
        "soon as they are ready, for hooks that send them or update with them; 0: as many as "
        "DistributedDataParallel sends together where it runs the model, else all at the end", 0
    ),
    "random": Option(
        str, "eager", "whose random numbers compiled code has: \"eager\"'s own, or \"generated\" where they are "
        "used, in fused kernels and again in the backward: other numbers, reproducible just as well",
        choices=("eager", "generated"),
    ),
    "recompile_limit": Option(
        int, 8, "variants of one function, and of one place in it where compiled code goes on "
        "after a host call (one that was captured for a number which others leave open counts half); a "
        "call that none of them fits then runs eager", 1
    ),
    "node_limit": Option(
        int, 64, "compiled parts of one function between its host calls, over all paths; a call "
        "that needs another then runs eager", 1
    ),
    "autotune_seconds": Option(
        int, 120, "what the search of the modes \"max-autotune\" may take for one graph; then the "
        "rules decide about what was not measured, and a later process goes on", 0
    ),
    "deterministic": Option(
        bool, False, "the modes \"max-autotune\" choose only where results have the same bits either "
        "way; torch.use_deterministic_algorithms(True) asks for it too"
    ),
    "max_ops": Option(
        int, 100_000, "tensor operations in one capture; beyond it the call runs eager", 1
    ),
    "graph_bytes": Option(
        int, 1 << 31, "device memory that the CUDA graphs on one stream may have together, in bytes; "
        "a plan that needs more is launched call by call", 0
    ),
    "max_bytecodes": Option(
        int, 50_000_000, "bytecodes interpreted in one capture; beyond it the call runs eager", 1
    ),
}

MODES: dict[str, Mode] = {
    "default": Mode("fused kernels, library products"),
    "reduce-overhead": Mode("as default, launched as CUDA graphs", graphs=True),
    "max-autotune": Mode(
        "a search over kernels and products of a GPU by measurement, launched as CUDA graphs",
        graphs=True, searches=True,
    ),
    "max-autotune-no-cudagraphs": Mode(
        "a search over kernels and products of a GPU by measurement", searches=True
    ),
}

BACKENDS: dict[str, str] = {
    "preheat": "captured graphs become generated kernels and library calls",
    "eager": "captured graphs run op by op through torch",
}


def checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Every option with its value: `given`, the rest by default.

    Raises UserError for an unknown key (naming the nearest), a wrong type or a value out of range.
    """
    values = {name: option.default for name, option in OPTIONS.items()}
    if given is None:
        return values
    if not isinstance(given, Mapping):
        raise UserError(f"options must be a dict, got {type(given).__name__}")
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None:
            raise UserError(f"unknown option {name!r}: {nearest(name, OPTIONS)}")
        if option.type is float and type(value) is int:
            value = float(value)
        if type(value) is not option.type:
            raise UserError(
                f"option {name!r} takes {option.type.__name__}, "
                f"got {value!r} ({type(value).__name__})"
            )
        if option.choices and value not in option.choices:
            raise UserError(f"option {name!r} is one of {', '.join(option.choices)}, "
                            f"not {value!r}: {nearest(value, option.choices)}")
        if option.type is float and not math.isfinite(value):
            raise UserError(f"option {name!r} takes a finite number, got {value!r}")
        if option.minimum is not None and not value >= option.minimum:
            raise UserError(f"option {name!r} must be at least {option.minimum}, got {value!r}")
        if option.maximum is not None and not value <= option.maximum:
            raise UserError(f"option {name!r} must be at most {option.maximum}, got {value!r}")
        values[name] = checked_buckets(value) if name == "buckets" else value
    return values


def checked_buckets(given: Mapping[str, Any]) -> dict[str, Buckets]:
    """Option "buckets" as data. Raises UserError for anything that is not of its form, and for an axis
    that two of them are about."""
    made = {name: _checked_bucket(name, one) for name, one in given.items()}
    owners: dict[tuple[str, int], str] = {}
    for name, own in made.items():
        for place in own.dims.items():
            other = owners.setdefault(place, name)
            if other != name:
                raise UserError(
                    f"buckets[{name!r}]: axis {place[1]} of {place[0]!r} is padded by "
                    f"buckets[{other!r}]: give each axis to one of them")
    return made


def _checked_bucket(name: str, one: Any) -> Buckets:
    if isinstance(one, Buckets):
        return one
    if not isinstance(one, Mapping):
        raise UserError(
            f"buckets[{name!r}] has to say which arguments it is about: {{'lengths': {one!r}, "
            f"'dims': {{'input_ids': 1}}, 'fill': {{}}}}, not {one!r}")
    for key in one:
        if key not in Buckets._fields:
            raise UserError(f"buckets[{name!r}]: unknown {key!r}: {nearest(key, Buckets._fields)}")
    lengths, dims, fill = one.get("lengths", ()), one.get("dims", {}), one.get("fill", {})
    is_list = isinstance(lengths, Sequence | range)
    if not is_list or not lengths or not all(type(n) is int and n > 0 for n in lengths):
        raise UserError(
            f"buckets[{name!r}]: lengths must be positive integers, such as [64, 128], got {lengths!r}")
    if not isinstance(dims, Mapping) or not dims or not all(
            type(axis) is int for axis in dims.values()):
        raise UserError(f"buckets[{name!r}]: dims must be {{argument: axis}}, got {dims!r}")
    if not isinstance(fill, Mapping):
        raise UserError(f"buckets[{name!r}]: fill must be {{argument: number}}, such as "
                        f"{{{next(iter(dims))!r}: 0}}, got {fill!r}")
    for argument, value in fill.items():
        if argument not in dims:
            raise UserError(
                f"buckets[{name!r}]: {argument!r} has a fill value and no axis that is padded: "
                f"{nearest(argument, dims)}")
        if not isinstance(value, (int, float, bool, complex)):
            raise UserError(f"buckets[{name!r}]: the fill of {argument!r} must be a number, got {value!r}")
    return Buckets(tuple(sorted(set(lengths))), dict(dims), dict(fill))


def checked_mode(mode: str | None) -> str:
    """`mode`, or "default" for None. Raises UserError for an unknown one, naming the nearest."""
    if mode is None:
        return "default"
    if not isinstance(mode, str) or mode not in MODES:
        raise UserError(f"unknown mode {mode!r}: {nearest(mode, MODES)}")
    return mode


def checked_backend(backend: Any, find: Callable[[str], Callable]) -> str | Callable:
    """`backend`: a name of `BACKENDS`, or a callable, which `find` gives for other names.

    Raises UserError for what is neither, as `find` does for a name that nobody knows.
    """
    if callable(backend) or isinstance(backend, str) and backend in BACKENDS:
        return backend
    if not isinstance(backend, str):
        raise UserError(
            f"backend must be a name or a callable of (gm, example_inputs), got {backend!r}")
    return find(backend)
