"""Object to flat block to callable address, here and in a process without llvmlite."""

import ctypes
import subprocess
import sys

import pytest

from preheat.base.errors import InternalError, UserError
from preheat.generate.build import build, compile_text, cpu_target, host_target, image, link
from preheat.ir.pack import encode
from preheat.ir.plan import Image
from preheat.run.load import _features_of, load, running_features

TEXT = """
@table = private constant [4 x i64] [i64 1, i64 20, i64 300, i64 4000]
define i64 @lookup(i64 %x) {
  %p = getelementptr i64, ptr @table, i64 %x
  %v = load i64, ptr %p
  %w = call i64 @plus_seven(i64 %v)
  ret i64 %w
}
define i64 @plus_seven(i64 %x) noinline {
  %a = add i64 %x, 7
  ret i64 %a
}
define ptr @address() {
  ret ptr @plus_seven
}
"""
INTEGER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def test_calls_constants_and_addresses_resolve():
    code = load(image(TEXT, host_target()))
    lookup = INTEGER(code.address("lookup"))
    assert [lookup(i) for i in range(4)] == [8, 27, 307, 4007]
    pointer = ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("address"))()
    assert pointer == code.address("plus_seven")


def test_image_runs_in_a_process_without_llvmlite(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(encode(image(TEXT, host_target())))
    program = (
        "import ctypes, pathlib, sys\n"
        "from preheat.ir.pack import decode\n"
        "from preheat.run.load import load\n"
        "code = load(decode(pathlib.Path(sys.argv[1]).read_bytes()))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address('lookup'))\n"
        "assert 'llvmlite' not in sys.modules and 'torch' not in sys.modules\n"
        "print(f(3))\n"
    )
    out = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert out.stdout == "4007\n", out.stderr


def test_no_kernels_are_an_empty_image():
    assert load(build((), host_target())).names == ()


def test_import_is_refused_by_name():
    text = "declare float @fmodf(float, float)\ndefine float @f(float %x) {\n" \
           "  %y = call float @fmodf(float %x, float %x)\n  ret float %y\n}"
    with pytest.raises(InternalError, match="fmodf"):
        link(compile_text(text, host_target()))


def test_writable_data_is_refused():
    text = "@state = global i64 5\ndefine void @f(i64 %x) {\n  store i64 %x, ptr @state\n  ret void\n}"
    with pytest.raises(InternalError, match="writable|section"):
        link(compile_text(text, host_target()))


def test_bad_text_names_the_fault():
    with pytest.raises(InternalError, match="LLVM refused"):
        compile_text("define void @f( {", host_target())


def test_missing_features_are_named():
    target = host_target()
    other = "aarch64" if target.arch == "x86_64" else "x86_64"
    with pytest.raises(UserError, match=other):
        load(Image(b"\xc3", (("f", 0),), cpu_target(other, ())))


def test_features_are_read_as_the_kernel_lists_them():
    listed = "processor\t: 0\nflags\t\t: fpu pni ssse3 sse4_1 avx2 abm\n"
    assert _features_of("x86_64", listed) == {"sse3", "ssse3", "sse4.1", "avx2", "lzcnt"}
    assert _features_of("aarch64", "Features\t: fp asimd atomics") == {"fp-armv8", "neon", "lse"}
    assert _features_of("aarch64", "") == {"fp-armv8", "neon"}
    assert set(host_target().features) <= running_features()


def test_unknown_entry_names_the_nearest():
    with pytest.raises(InternalError, match="plus_seven"):
        load(image(TEXT, host_target())).address("plus_sevn")


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_architecture_links(arch):
    text = TEXT.replace("define i64 @plus_seven", "define hidden i64 @plus_seven")
    linked = link(compile_text(text, cpu_target(arch, ())))
    assert [name for name, _ in linked.entries] == ["lookup", "plus_seven", "address"]
