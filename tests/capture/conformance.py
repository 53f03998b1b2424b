"""Runs CPython's own test files with each test method interpreted by the machine.

    python tests/capture/conformance.py test_with test_scope      (any of MODULES; all by default)

A test counts when it passes natively; it must then pass interpreted, with every hook watched.
`EXPECTED` lists, with the reason, the ones that cannot. Needs the stdlib package `test`, neither
torch nor pytest. Prints one line a module and ends with status 1 if a test failed that is not expected to.
"""

import doctest
import faulthandler
import fnmatch
import importlib
import io
import os
import sys
import types
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from preheat.capture.machine import run, run_code  # noqa: E402
from watching import Watching  # noqa: E402

MODULES = """
    test_generators test_scope test_with test_exceptions test_class test_descr test_dict
    test_list test_patma test_listcomps test_setcomps test_dictcomps test_genexps
    test_keywordonlyarg test_extcall test_unpack test_unpack_ex test_augassign test_compare
    test_contains test_iter test_super test_property test_decorators test_raise
    test_exception_variations test_named_expressions test_fstring test_dataclasses test_enum
    test_functools test_except_star test_binop test_bool test_opcodes test_richcmp
    test_funcattrs test_global test_metaclass test_pow test_range test_set test_tuple
    test_slice test_string test_types test_operator test_itertools test_contextlib test_abc
    test_collections test_exception_group test_exception_hierarchy test_positional_only_arg
    test_call test_builtin test_grammar test_heapq test_userdict test_copy test_ordered_dict
    test_yield_from test_int test_float test_complex test_bisect test_reprlib
""".split()

EXPECTED = {
    "counts references, or looks at what the garbage collector sees": """
        test_descr.ClassPropertiesAndMethods.test_cycle_through_dict
        test_descr.ClassPropertiesAndMethods.test_slots
        test_exceptions.ExceptionTests.test_memory_error_cleanup
        test_exceptions.ExceptionTests.test_recursion_error_cleanup
        test_functools.TestLRUC.test_lru_cache_weakrefable
        test_functools.TestLRUPy.test_lru_cache_weakrefable
        test_genexps.__test__.doctests
        test_list.ListTest.test_free_after_iterating
        test_ordered_dict.*.test_reference_loop
        test_ordered_dict.*.test_highly_nested_subclass
        """,
    "wants a real frame object, or f_lineno, f_back or f_locals of a traceback's frame": """
        test_exceptions.PEP626Tests.*
        test_exceptions.ExceptionTests.testSettingException
        test_raise.TestTracebackType.test_attrs
        test_raise.TestTracebackType.test_constructor
        """,
    "looks inside a generator: gi_code, gi_frame, gi_yieldfrom are the driver's": """
        test_generators.YieldFromTests.test_generator_gi_yieldfrom
        test_generators.__test__.coroutine
        test_generators.__test__.syntax
        test_yield_from.TestPEP380Operation.test_delegator_is_visible_to_debugger
        """,
    "traces lines": """
        test_patma.TestTracing.*
        """,
    "replaces a builtin that the machine itself uses": """
        test_functools.TestLRUC.test_lru_reentrancy_with_len
        test_functools.TestLRUPy.test_lru_reentrancy_with_len
        test_builtin.TestBreakpoint.test_envar_good_path_builtin
        """,
    "pickles an iterator whose callback the machine has wrapped": """
        test_itertools.TestBasicOps.test_filter
        test_itertools.TestBasicOps.test_map
        test_iter.TestCase.test_iter_callable
        test_builtin.BuiltinTest.test_filter_pickle
        test_builtin.BuiltinTest.test_map_pickle
        """,
    "changes a class inside the `__eq__` of a key of its own dict, while it is looked up": """
        test_descr.MiscTests.test_type_lookup_mro_reference
        """,
    "list(o) asks `__length_hint__`, the machine's iterator does not": """
        test_descr.ClassPropertiesAndMethods.test_special_method_lookup
        """,
    "C warns, and blames the line of the innermost native frame": """
        test_functools.TestPartialC*.test_partial_as_method
        """,
    "C replaces the vectorcall of a Python function": """
        test_call.TestPEP590.test_setvectorcall*
        """,
    "an error while `close` is looked up is printed, not raised": """
        test_yield_from.TestPEP380Operation.test_broken_getattr_handling
        """,
}
"""Why, and which tests; a star stands for any name."""

LEFT_OUT = {
    "deletes builtins from under the machine, so that the tests after it fail": """
        test_iter.TestCase.test_reduce_mutating_builtins_iter
        """,
    "runs the same few instructions a million times: minutes, and no other way through the machine": """
        test_builtin.BuiltinTest.test_divmod
        test_collections.TestCollectionABCs.test_Sequence_mixins
        test_collections.TestCounter.test_inplace_operations
        test_collections.TestCounter.test_multiset_operations*
        test_collections.TestNamedTuple.test_odd_sizes
        test_complex.ComplexTest.test_truediv
        test_dict.*Test.test_copy_fuzz
        test_dict.*Test.test_popitem
        test_float.HexFloatTestCase.test_roundtrip
        test_heapq.*.test_nbest
        test_itertools.RegressionTests.test_long_chain_of_empty_iterables
        test_itertools.TestBasicOps.test_combinat*
        test_itertools.TestBasicOps.test_permutations
        test_itertools.TestBasicOps.test_product
        test_itertools.TestBasicOps.test_tee_del_backward
        test_set.*.test_hash_effectiveness
        test_tuple.TupleTest.test_bug7466
        test_tuple.TupleTest.test_hash_exact
        test_userdict.UserDictTest.test_popitem
        """,
}
"""Not run at all, and why."""


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
        if only not in test.id() or is_among(LEFT_OUT, test.id()):
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
    failed = {name: text for name, text in ours.said.items() if name in native.passed}
    surprises = {name: text for name, text in failed.items() if not is_among(EXPECTED, name)}
    print(
        f"{module_name:28} {len(native.passed) - len(failed):4} of {len(native.passed):4} pass, "
        f"{len(failed) - len(surprises)} expected failures",
        flush=True,
    )
    for name, text in surprises.items():
        print(f"    {name}")
        if is_verbose:
            print(text)
    return len(surprises)


def is_among(table: dict[str, str], name: str) -> bool:
    patterns = " ".join(table.values()).split()
    return any(fnmatch.fnmatchcase(name, "test." + pattern) for pattern in patterns)


def main() -> int:
    faulthandler.enable()
    arguments = [word for word in sys.argv[1:] if word[0] != "-"]
    only = next((word[7:] for word in sys.argv if word.startswith("--only=")), "")
    names = arguments or MODULES
    return 1 if sum(check(name, "-v" in sys.argv, only) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
