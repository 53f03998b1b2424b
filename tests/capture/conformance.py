"""Runs CPython's own test files with each test method interpreted by the machine.

    python tests/capture/conformance.py test_with test_scope      (any of MODULES; all by default)

A test counts when it passes natively; it must then pass interpreted. `EXPECTED` lists, with the reason,
the ones that cannot. Needs the stdlib package `test`, no torch and no pytest. Prints one line a module and
ends with status 1 if a test failed that is not expected to, or passed that is.
"""

import doctest
import faulthandler
import importlib
import io
import os
import sys
import types
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from preheat.capture.machine import run, run_code  # noqa: E402
from preheat.capture.observer import Observer  # noqa: E402

MODULES = (
    "test_generators test_scope test_with test_exceptions test_class test_descr test_dict test_list test_patma "
    "test_listcomps test_setcomps test_dictcomps test_genexps test_keywordonlyarg test_extcall test_unpack "
    "test_unpack_ex test_augassign test_compare test_contains test_iter test_super test_property "
    "test_decorators test_raise test_exception_variations test_named_expressions test_fstring "
    "test_dataclasses test_enum test_functools test_except_star test_binop test_bool test_opcodes "
    "test_richcmp test_funcattrs test_global test_metaclass test_pow test_range test_set test_tuple "
    "test_slice test_string test_types test_operator test_itertools test_contextlib test_abc test_collections "
    "test_exception_group test_exception_hierarchy test_positional_only_arg test_call test_builtin "
    "test_grammar test_heapq test_userdict test_copy test_weakref test_ordered_dict test_yield_from "
    "test_int test_float test_complex test_long test_bisect test_reprlib test_typing test_traceback"
).split()

class Watching(Observer):
    """Overrides every hook, to see that none of them disturbs the program."""


for name, hook in vars(Observer).items():
    if callable(hook) and name[0] != "_":
        setattr(Watching, name, types.FunctionType(hook.__code__, hook.__globals__, name))

EXPECTED: dict[str, dict[str, str]] = {}


class Interpreted(unittest.TextTestResult):
    """Collects the ids of tests that passed and what the others said."""

    def __init__(self):
        super().__init__(unittest.runner._WritelnDecorator(io.StringIO()), False, 0)
        self.passed: set[str] = set()
        self.said: dict[str, str] = {}

    def addSuccess(self, test):
        self.passed.add(test.id())

    def addFailure(self, test, error):
        self.said[test.id()] = self._exc_info_to_string(error, test)

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.said[test.id()] = self._exc_info_to_string(error, test)


def outcome(module_name: str, is_interpreted: bool, only: str = "") -> Interpreted:
    """Runs the tests of a module once, natively or interpreted."""
    module = importlib.import_module("test." + module_name)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = Interpreted()
    doctest.exec = exec_interpreted if is_interpreted else exec
    for test in flat(suite):
        if only not in test.id():
            continue
        if is_interpreted and not isinstance(test, doctest.DocTestCase):
            interpret_method(test)
        stdout, limit = sys.stdout, sys.getrecursionlimit()
        try:
            with warnings.catch_warnings():
                test.run(result)
        finally:
            sys.stdout = stdout
            sys.setrecursionlimit(limit)
    return result


def exec_interpreted(code: types.CodeType, space: dict) -> None:
    run_code(code, space, Watching())


def interpret_method(test: unittest.TestCase) -> None:
    name = test._testMethodName
    method = getattr(test, name)
    setattr(test, name, lambda: run(method, (), {}, Watching()))


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def check(module_name: str, is_verbose: bool, only: str) -> int:
    """Prints how a module fares; returns the number of surprises."""
    try:
        native = outcome(module_name, False, only)
    except (ImportError, unittest.SkipTest) as missing:
        print(f"{module_name:28} skipped: {missing}")
        return 0
    ours = outcome(module_name, True, only)
    expected = EXPECTED.get(module_name, {})
    failed = {name: text for name, text in ours.said.items() if name in native.passed}
    surprises = {name: text for name, text in failed.items() if short(name) not in expected}
    kept = len(native.passed) - len(failed)
    print(f"{module_name:28} {kept:4} of {len(native.passed):4} pass, {len(failed) - len(surprises)} expected failures")
    for name, text in surprises.items():
        print(f"    {short(name)}")
        if is_verbose:
            print(text)
    return len(surprises)


def short(name: str) -> str:
    return name.split(".", 2)[-1]


def main() -> int:
    faulthandler.enable()
    arguments = [word for word in sys.argv[1:] if word[0] != "-"]
    only = next((word[7:] for word in sys.argv if word.startswith("--only=")), "")
    names = arguments or MODULES
    return 1 if sum(check(name, "-v" in sys.argv, only) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
