"""The command line: `preheat demo | bench | explain | cache | doctor`.

Each command loads only what it runs; the benchmark and the demo live in the package `bench`.
"""

import functools
import importlib
import os
import platform
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import preheat
from preheat.base.errors import PreheatError, UserError, nearest


def main() -> None:
    """Runs the command that the arguments name; a `PreheatError` is one red line, exit status 1."""
    try:
        commands(standalone_mode=True)
    except PreheatError as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", style="red", markup=False)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(preheat.__version__, prog_name="preheat")
def commands() -> None:
    """Preheat compiles PyTorch programs: runs them once, then runs fused machine code."""


@commands.command()
def demo() -> None:
    """Compile a sentence-embedding model with its real weights, and compare."""
    _bench("demo").run(_console())


@commands.command()
@click.option("--models", "chosen", default="", help="Names separated by commas; default all.")
@click.option("--no-torch-compile", is_flag=True, help="Only eager and Preheat.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report here too.",
)
@click.option("--list", "is_listing", is_flag=True, help="Name the models and stop.")
def bench(chosen: str, no_torch_compile: bool, json_path: Path | None, is_listing: bool) -> None:
    """Measure cold, warm and steady against eager and torch.compile (all: 15 minutes)."""
    console = _console()
    models, suite, table = _bench("models"), _bench("suite"), _bench("table")
    if is_listing:
        for name, row in models.MODELS.items():
            console.print(f"{name:15} {row.meaning}", markup=False)
        return
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    if chosen and not names:
        raise UserError(f"--models {chosen!r} names none: leave it out for all")
    names = names or list(models.MODELS)
    for name in names:
        if name not in models.MODELS:
            raise UserError(f"unknown model {name!r}: {nearest(name, models.MODELS)}")
    with table.progress_line(console) as say:
        report = suite.run(names, suite.backends_here(not no_torch_compile), progress=say)
    table.show(report, console)
    if json_path is not None:
        json_path.write_text(report.as_json() + "\n", encoding="utf-8")


@commands.command(context_settings={"allow_interspersed_args": False})
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the page here too.")
def explain(target: str, arguments: tuple[str, ...], html: Path | None) -> None:
    """Say what TARGET compiles to and what breaks.

    TARGET is a script, which is run with ARGUMENTS: what it compiles is explained, and its exit
    code is this command's. Or
    "package.module:name" or "file.py:name" of a function without arguments that returns
    (callable, args). Or a model of `preheat bench --list`.
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise UserError(f"--html: there is no folder {html.absolute().parent}")
    found, ended = _explained(target, arguments)
    click.echo(found)
    if html is not None:
        click.echo(f"written: {found.to_html(html)}")
    if ended is not None:
        raise ended


@commands.command()
@click.argument("what", type=click.Choice(("show", "clear")), default="show")
@click.option("--clear", is_flag=True, help="The same as `preheat cache clear`.")
def cache(what: str, clear: bool) -> None:
    """Show what the cache on disk holds, or clear it."""
    module = importlib.import_module("preheat.store.disk")
    disk = module.Disk(module.default_folder())
    if clear or what == "clear":
        click.echo(f"removed {disk.clear()} entries of {disk.folder}")
        return
    sizes: dict[str, list[int]] = {}
    for path, size, _ in disk.entries():
        sizes.setdefault(path.parent.parent.name, []).append(size)
    table = Table(title=f"{disk.folder}", title_justify="left")
    for head in ("program", "entries", "KiB"):
        table.add_column(head, justify="left" if head == "program" else "right")
    for shelf, found in sorted(sizes.items()):
        table.add_row(shelf, str(len(found)), f"{sum(found) / 1024:.0f}")
    Console().print(table)


@commands.command()
@click.option("--reasons", is_flag=True, help="Print the page of all break reasons instead.")
def doctor(reasons: bool) -> None:
    """Check what Preheat needs and finds here."""
    if reasons:
        click.echo(importlib.import_module("preheat.report.breaks_page").breaks_page(), nl=False)
        return
    console = Console()
    table = Table(show_header=False)
    for name, look in _LOOKS.items():
        table.add_row(name, _looked(look))
    console.print(table)


# ---------------------------------------------------------------------------- explain
def _explained(target: str, arguments: tuple[str, ...]) -> tuple[Any, SystemExit | None]:
    """The explanation of `target`, as `preheat explain` takes it, and the exit with which a script has ended."""
    path, colon, name = target.rpartition(":")
    if colon:
        call, args = _pair(path, name)
        return preheat.explain(call)(*args), None
    if target.endswith(".py") or os.path.exists(target):
        return _explained_script(target, arguments)
    models = _bench("models")
    if target not in models.MODELS:
        raise UserError(
            f"unknown model {target!r}: {nearest(target, models.MODELS)} (a script ends in .py, a "
            f"function is package.module:name)")
    subject = models.make(target)
    with models.settings():
        return preheat.explain(subject.call)(*subject.args, **subject.kwargs), None


def _explained_script(path: str, arguments: tuple[str, ...]) -> tuple[Any, SystemExit | None]:
    """Runs the script as `python path arguments` would, and explains what it compiled."""
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path!r} in {os.getcwd()}")
    explain_call = importlib.import_module("preheat.report.explain").explain_call
    before = sys.argv, sys.path
    sys.argv, sys.path = [path, *arguments], [os.path.dirname(os.path.abspath(path)), *sys.path]
    exits: list[SystemExit] = []
    try:
        found = explain_call(lambda: _ran(path, exits), path)
    finally:
        sys.argv, sys.path = before
    if not found.graph_count and not found.breaks and found.error is None:
        raise UserError(
            f"{path} called nothing that is compiled: put preheat.compile around a function or a "
            f"module, or explain one function with {path}:NAME")
    if found.error is not None:
        exits.append(SystemExit(1))
    return found, exits[0] if exits else None


def _ran(path: str, exits: list[SystemExit]) -> None:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:  # how a script ends, not an error of it
        exits.append(error)


def _pair(path: str, name: str) -> tuple[Any, Any]:
    """What the function `name` of a module or a script gives: a callable and its arguments."""
    if not path or not name:
        raise UserError(f"explain takes package.module:name, got {path + ':' + name!r}")
    sys.path.insert(0, os.getcwd())
    try:
        if path.endswith(".py"):
            members = runpy.run_path(path)
        else:
            members = vars(importlib.import_module(path))
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(f"cannot load {path!r}: {error}") from error
    if name not in members:
        raise UserError(f"{path} has no {name!r}: {nearest(name, members)}")
    given = members[name]() if callable(members[name]) else members[name]
    if not (isinstance(given, tuple | list) and len(given) == 2 and callable(given[0])):
        raise UserError(
            f"{path}:{name} must be a function without arguments that returns (callable, args), "
            f"such as `def {name}(): return model, (x,)`; it gave a {type(given).__name__}")
    return given[0], tuple(given[1])


# ---------------------------------------------------------------------------- doctor
def _versions() -> str:
    found = [f"preheat {preheat.__version__}", f"python {platform.python_version()}"]
    for name in ("torch", "llvmlite", "transformers"):
        try:
            found.append(f"{name} {importlib.import_module(name).__version__}")
        except ImportError:
            found.append(f"{name} is not installed")
    return ", ".join(found)


def _target() -> str:
    target = importlib.import_module("preheat.generate.build").host_target()
    features = " ".join(target.features)
    return f"{target.kind} {target.arch}, vectors of {target.vector_bytes} bytes: {features}"


def _probes() -> str:
    device = importlib.import_module("preheat.run.device")
    have = device.context().have
    return ", ".join(f"{name} {'yes' if name in have else 'no'}" for name in device.FEATURES)


def _compiled_call() -> str:
    torch = importlib.import_module("torch")
    x = torch.arange(8.0)
    fn = functools.partial(torch.add, x)
    explanation = preheat.explain(lambda y: torch.relu(fn(y)) * 2)(x)
    is_right = torch.equal(explanation.result, torch.relu(x + x) * 2)
    return f"{'right' if is_right else 'WRONG'}: {explanation}"


def _cpp_compiler() -> str:
    found = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    return f"{', '.join(found) or 'none'} (Preheat needs none; torch.compile does)"


def _cache_folder() -> str:
    folder = importlib.import_module("preheat.store.disk").default_folder()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    return f"{folder} ({'writable' if is_writable else 'NOT writable: nothing is kept'})"


_LOOKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "target": _target,
    "native driver": _probes,
    "a compiled call": _compiled_call,
    "C++ compiler": _cpp_compiler,
    "cache": _cache_folder,
}


def _looked(look: Callable[[], str]) -> str:
    """What `look` finds, or why it fails: a doctor goes on to the next question."""
    try:
        return look()
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"


def _console() -> Console:
    """The terminal; where there is none (a pipe, a log), wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=110)


def _bench(name: str) -> Any:
    """A module of the package `bench`. Raises UserError where its packages are missing."""
    try:
        return importlib.import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed; the demo and the benchmark need it: "
            f"pip install 'preheat[demo]'"
        ) from error
