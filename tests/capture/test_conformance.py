"""CPython's own test suite, interpreted, under every Python that is found.

`make test` runs a quick part, `make test-conformance` every module that `conformance.py` lists. Each
run is a process of its own, without torch.
"""

import functools
import pathlib
import shutil
import subprocess
import sys

import pytest
from capture.conformance import MODULES

QUICK = (
    "test_scope test_with test_generators test_class test_super test_raise test_named_expressions "
    "test_except_star test_extcall test_unpack_ex test_property test_decorators test_listcomps "
    "test_keywordonlyarg test_augassign test_compare test_contains test_dictcomps test_opcodes"
).split()
VERSIONS = ("3.11", "3.12", "3.13")
SCRIPT = pathlib.Path(__file__).with_name("conformance.py")


@functools.cache
def interpreters() -> dict[str, str]:
    """{version: path} of the Pythons of pyenv and on PATH; the present one for its own version."""
    found = {}
    for version in VERSIONS:
        installed = sorted(pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        on_path = shutil.which(f"python{version}")
        if installed:
            found[version] = str(installed[-1])
        elif on_path:
            found[version] = on_path
    found["%d.%d" % sys.version_info[:2]] = sys.executable
    return found


@functools.cache
def python(version: str) -> str | None:
    """The interpreter of `version`, or None if it is not here or lacks the package `test`."""
    path = interpreters().get(version)
    if path is None or subprocess.run([path, "-c", "import test.support"], capture_output=True).returncode:
        return None
    return path


def conform(version: str, modules) -> None:
    path = python(version)
    if path is None:
        pytest.skip(f"no Python {version} with a test package here")
    done = subprocess.run([path, SCRIPT, *modules], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("version", VERSIONS)
def test_quick_part(version):
    conform(version, QUICK)


@pytest.mark.conformance
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("module", MODULES)
def test_module(module, version):
    conform(version, [module])
