"""A quick part of CPython's own test suite, interpreted, under every Python that is found.

`conformance.py` runs the rest. Each interpreter is a process of its own, without torch.
"""

import pathlib
import shutil
import subprocess
import sys

import pytest

QUICK = (
    "test_scope test_with test_generators test_class test_super test_raise test_named_expressions "
    "test_except_star test_extcall test_unpack_ex test_property test_decorators test_listcomps "
    "test_keywordonlyarg test_augassign test_compare test_contains test_dictcomps test_opcodes"
).split()
VERSIONS = ("3.11", "3.12", "3.13")
SCRIPT = pathlib.Path(__file__).with_name("conformance.py")


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


@pytest.mark.parametrize("version", VERSIONS)
def test_quick_part(version):
    path = interpreters().get(version)
    if path is None:
        pytest.skip(f"no Python {version} here")
    if subprocess.run([path, "-c", "import test.support"], capture_output=True).returncode:
        pytest.skip(f"Python {version} here has no test package")
    done = subprocess.run([path, SCRIPT, *QUICK], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
