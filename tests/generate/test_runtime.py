"""The runtime image: its notation, its targets, and that no address or import is in it."""

import re

import pytest

from preheat.generate.build import cpu_target, host_target
from preheat.generate.runtime import ENTRIES, build_runtime, runtime_text
from preheat.generate.runtime_text import expand
from preheat.ir.records import CALLS, RECORDS, call_offset, offset, size


def test_fields_and_numbers_expand():
    text = expand(
        "  %slow = FIELD ptr program.slow, %program\n"
        "  STORE i64 {reason.guard}, frame.flag, %frame\n"
        "  %kernel = FIELD ptr kernel.address, %call    ; {size.input}"
    )
    assert text == (
        f"  %at0 = getelementptr i8, ptr %program, i64 {offset('program', 'slow')}\n"
        "  %slow = load ptr, ptr %at0\n"
        f"  %at2 = getelementptr i8, ptr %frame, i64 {offset('frame', 'flag')}\n"
        "  store i64 0, ptr %at2\n"
        f"  %at1 = getelementptr i8, ptr %call, i64 {call_offset('kernel', 'address')}\n"
        f"  %kernel = load ptr, ptr %at1    ; {size('input')}"
    )


def test_unknown_names_are_errors():
    for text in ("%x = FIELD ptr program.no_such, %p", "{kind.no_such}", "{no_such}"):
        with pytest.raises((KeyError, ValueError)):
            expand(text)


def test_the_text_has_no_import_and_no_address():
    text = runtime_text()
    assert not re.search(r"^declare (?!.*@llvm\.)", text, re.MULTILINE)  # instructions, no functions
    assert not re.search(r"inttoptr \(i64 \d", text)
    assert not re.search(r"\bFIELD\b|\bSTORE\b", text)


def test_call_records_fit():
    assert max(map(len, CALLS.values())) == len(RECORDS["call"]) - 1


@pytest.mark.parametrize(
    "target", [host_target(), cpu_target("x86_64", []), cpu_target("aarch64", [])], ids=str
)
def test_the_image_builds_for_every_architecture(target):
    image = build_runtime(target)
    assert {name for name, _ in image.entries} >= set(ENTRIES) and len(image.code) < 32 << 10


def test_equal_text_gives_equal_code():
    assert build_runtime(host_target()) == build_runtime(host_target())


def test_each_function_says_how_it_is_compiled():
    """Every function of the driver is hot, rare or inline; the checker has no attributes."""
    rows = re.findall(r"^define .*?@([\w.]+)\(.*?\)(?: #(\d))? \{", runtime_text(), re.M | re.S)
    kinds = {name: kind for name, kind in rows}
    checker = {kinds.pop(name) for name in ("preheat_check", "compute", "spans_apart")}
    assert checker == {""} and set(kinds.values()) == {"0", "1", "2"}
