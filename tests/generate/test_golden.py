"""The text of small kernels, for people to read."""

from generate.kernels import pointwise
from generate.test_kernels import reduction

from preheat.generate.build import cpu_target
from preheat.generate.emit import module_text
from preheat.ir.loop import LoopOp

TARGET = cpu_target("x86_64", ("avx2", "fma"))


def test_pointwise(golden):
    relu = (LoopOp("const", 1, "float32", other=0.0), LoopOp("maximum", 2, "float32", (0, 1)))
    golden("generate_relu", module_text([pointwise("relu", 1000, ("float32",), "float32", *relu)], TARGET))


def test_row_sum(golden):
    golden("generate_row_sum", module_text([reduction("sum", 4, 100, "float32", "float32")], TARGET))
