"""Imports: the parts of the import statement that come after `__import__`.

    from package import name      the attribute, or the submodule that is in sys.modules
    from module import *          the names of `__all__`, or those without a leading underscore

Module bodies run natively: importing is not part of a program's steady state.
Source: CPython `Python/ceval.c` `import_from`, `import_all_from`.
"""

import sys
from typing import Any

from preheat.capture.tracebacks import raise_as_is


def import_submodule(m, place: tuple, error: BaseException) -> Any:
    """After `module.name` raised AttributeError: the submodule of that name, or an ImportError."""
    if not isinstance(error, AttributeError):
        raise_as_is(error)
    module, name = place
    package = getattr(module, "__name__", None)
    found = sys.modules.get(f"{package}.{name}") if isinstance(package, str) else None
    if found is not None:
        return found
    path = getattr(module, "__file__", None)
    shown = package if isinstance(package, str) else "<unknown module name>"
    spec = getattr(module, "__spec__", None)
    if path is not None and getattr(spec, "_initializing", False):
        text = f"cannot import name {name!r} from partially initialized module {shown!r} "
        text += f"(most likely due to a circular import) ({path})"
    else:
        text = f"cannot import name {name!r} from {shown!r} ({path or 'unknown location'})"
    raise ImportError(text, name=package, path=path)


def import_star(m, module: Any, space: dict) -> None:
    """Binds the public names of `module` in `space`."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in module.__dict__ if not name.startswith("_")]
    for name in names:
        space[name] = getattr(module, name)
