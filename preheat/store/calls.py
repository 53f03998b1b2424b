"""Keys of compiled calls: which stored entries could fit this target and these arguments.

The key's fields are what must be equal for machine code and bytecode to be valid at all; the hint
is a cheap digest of the call's types and shapes, so that few entries are read. Neither decides
correctness: the guards of an entry do, evaluated on the live objects.
"""

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from preheat.base.digest import code_digest
from preheat.base.names import name_of
from preheat.store.key import Key


def call_key(target: Any, options: Mapping[str, Any], machine: str) -> Key:
    """The key of `target` (a function, method, module or callable) compiled with `options` for
    `machine`."""
    function = entry_function(target)
    owner = target if function is target else type(getattr(target, "__self__", target))
    module, qualname = name_of(target) or (owner.__module__, owner.__qualname__)
    name = f"{module}.{qualname}"
    code = getattr(function, "__code__", None)
    return Key(name, {
        "code": code_digest(code) if code is not None else "",
        "options": " ".join(f"{k}={options[k]!r}" for k in sorted(options)),
        "machine": machine,
        **versions(),
    })


def machine_key(name: str, machine: str) -> Key:
    """The key of something that depends on the machine and our version alone."""
    return Key(f"preheat.{name}", {"machine": machine, **versions()})


def entry_function(target: Any) -> Any:
    """The Python function that a call of `target` enters; `target` itself when there is none."""
    target = getattr(target, "__func__", target)
    if hasattr(target, "__code__"):
        return target
    cls = type(target)
    return getattr(cls, "forward", None) or getattr(cls, "__call__", target)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of everything whose change makes stored entries worthless."""
    found = {"python": platform.python_version(), "implementation": sys.implementation.cache_tag}
    for name in ("torch", "llvmlite"):
        try:
            found[name] = _version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    found["preheat"] = _own_build()
    return found


def _version(package: str) -> str:
    """The version line in the header of the package's metadata: parsing all of torch's takes 1.8
    ms."""
    header = (metadata.distribution(package).read_text("METADATA") or "").partition("\n\n")[0]
    for line in header.splitlines():
        if line.startswith("Version:"):
            return line.removeprefix("Version:").strip()
    return metadata.version(package)


def call_hint(facts: Any) -> str:
    """A digest of the call's facts (primitives and tuples), as part of a file name."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()


def _own_build() -> str:
    """A digest of our own files' names, sizes and times: a changed compiler reuses nothing."""
    state = hashlib.blake2b(digest_size=8)
    folders = [str(Path(__file__).parent.parent)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            rows = sorted((entry.name, entry) for entry in entries)
        for name, entry in rows:
            if name.endswith(".py"):
                stat = entry.stat()
                state.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
            elif "." not in name and name != "__pycache__" and entry.is_dir():
                folders.append(entry.path)
    return state.hexdigest()
