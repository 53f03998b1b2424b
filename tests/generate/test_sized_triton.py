"""Kernels for a GPU whose sizes are arguments, without one: text, binaries, Triton's interpreter."""

import re

import pytest
import torch
from generate.sized_programs import FIRST, PROGRAMS, TARGET, planned
from generate.test_triton import interpret, needs_triton, slow

from preheat.generate import rungs
from preheat.generate.cubin import build_gpu, gpu_target
from preheat.generate.triton_ops import HELPERS
from preheat.ir.loop import sizes_of
from preheat.ir.pack import decode, encode
from preheat.ir.plan import Image, Sizing
from preheat.ir.scalar import evaluate, symbols
from preheat.run.gpu import is_for, programs_of

LONG = {"joined", "known_rows", "long_rows", "mask", "parts", "pooled"}  # as Triton interprets them


def only(program, *args):
    """The plan's only kernel, and its sources."""
    made = planned(program, args)
    (kernel,) = made.plan.kernels
    return made, kernel, made.sources[kernel.name]


def at(kernel, **values):
    return {size: evaluate(size, values) for size in sizes_of(kernel) if set(symbols(size)) <= set(values)}


def first(kernel, sources, **values):
    return next(s for s in sources if is_for(s.sizing, at(kernel, **values)))


def test_rows_have_tiles_by_length_and_a_walk_for_any():
    made, kernel, sources = only(lambda x: torch.softmax(x, -1), torch.randn(5, 37))
    short, long, odd, walked = (
        first(kernel, sources, n2=9, n3=n) for n in (64, 500, 501, 20000))
    assert (short.tile.rows, short.tile.columns, long.tile.columns) == (32, 64, 512)
    assert walked.tile.is_looped and walked.text.count("for start in") == 3
    assert walked.text.count("for back in") == 1 and walked.tile.columns == 16384
    assert first(kernel, sources, n2=9, n3=5000).tile.columns == 4096
    assert short.text.count("tl.load") == 1
    assert 4 in long.multiples and 4 not in odd.multiples and long.tile == odd.tile
    exact, half, more = (first(kernel, sources, n2=9, n3=n) for n in (512, 383, 385))
    assert "mask=is_x" not in exact.text and "is_x" not in exact.text.split("tl.store")[0]
    assert "(x < 256) | (x < s1)) & (x < 384)" in half.text and "is_x = ((x < 384) | (x < s1))" in more.text
    assert {source.tile for source in (exact, half, more)} == {odd.tile}
    assert first(kernel, sources, n2=9, n3=0).tile.columns == 16, "no row is as good as a full one"
    assert programs_of(short.sizing, at(kernel, n2=33, n3=64)) == 2


def test_very_short_rows_and_lines_have_tiles_of_their_own():
    made, kernel, sources = only(lambda x: torch.softmax(x, -1), torch.randn(200, 998))
    assert [first(kernel, sources, n2=9, n3=n).tile.columns for n in (7, 16, 17, 64, 65)] == [16, 16, 64, 64, 128]
    made, kernel, sources = only(lambda x, y: x * y[:, None], torch.randn(200, 998), torch.randn(200))
    tiles = [first(kernel, sources, n2=8, n3=n).tile for n in (64, 68, 1000, 1 << 20)]
    assert [(tile.rows, tile.columns) for tile in tiles] == [(16, 64), (8, 128), (4, 256), (4, 256)]
    made, kernel, sources = only(lambda x, y: x * y[:, None], torch.randn(5, 40000), torch.randn(5))
    tiles = [first(kernel, sources, n2=8, n3=n).tile for n in (64, 1000, 1 << 20)]
    assert [(tile.rows, tile.columns) for tile in tiles] == [(16, 64), (4, 256), (1, 1024)]


def test_lines_that_begin_anywhere_and_very_short_ones_are_one_dimension():
    """A softmax of columns of 262141 x 67 took 93 us on an H200 by lines, 83 so; 73 with sizes known."""
    made, kernel, sources = only(lambda x, y: x * y[:, None], torch.randn(200, 998), torch.randn(200))
    for length in (0, 1, 7, 16, 32, 67, 998, 1021):
        source = first(kernel, sources, n2=9, n3=length)
        assert source is sources[-1] and source.tile.down == () and source.tile.columns == 1024
    assert "% s1" not in source.text and source.text.count("// s1") == 2, "one division for each way through the program"


def test_rows_of_whole_tiles_are_masked_and_not_clamped():
    """A place of its own for each row takes registers: softmax of 262144 x 64 had 95 of a thread, not 77, and 38.5 us, not 36."""
    made, kernel, sources = only(lambda x: torch.softmax(x, -1), torch.randn(200, 998))
    whole, some = (first(kernel, sources, n2=9, n3=n).text for n in (64, 60))
    assert "minimum(y" not in whole and "mask=is_y" in whole and "tl.minimum(y, s0 - 1)" in some


def test_a_sum_and_the_squares_about_its_mean_are_one_walk():
    """Two took 58 us on an H200 for 16 rows of 4194304 in 16 bits, one takes 43; of columns 48 for 32767 x 1021, and 33."""
    for program, shape in ((lambda x: x.var(0), (4000, 998)), (lambda x: x.var(-1), (16, 1 << 20))):
        for dtype in (torch.float32, torch.bfloat16):
            made = planned(program, (torch.empty(shape, dtype=dtype),))
            kernel, _ = made.plan.kernels
            source = made.sources[kernel.name][-1]
            assert source.tile.is_looped and source.text.count("for start in") == 2, "without masks, then with them"
            whole, light = source.text.split("for start in")[1:]
            assert "h" not in {line.split()[0][:1] for line in whole.splitlines() if line.startswith("        ")}
            assert source.text.count("tl.load") == 2 and "int64) // " not in light


def test_columns_that_are_walked_twice_are_held():
    made, kernel, sources = only(lambda x: x.softmax(1), torch.randn(40, 400, 998))
    tile = first(kernel, sources, n2=40, n3=512, n4=998).tile
    assert (tile.rows, tile.columns, tile.is_looped) == (32, 512, False)


def test_few_columns_are_taken_by_more_programs():
    made = planned(lambda x: x.var(0), (torch.empty(4000, 998, dtype=torch.bfloat16),))
    kernel, _ = made.plan.kernels
    few, many = (source.tile for source in made.sources[kernel.name])
    assert (few.rows, few.columns, many.rows, many.columns) == (32, 64, 64, 32)


def test_largest_values_of_columns_wait_for_no_other_thread():
    made = planned(lambda x: x.softmax(0), (torch.randn(4000, 998),))
    _, *walks = made.sources[made.plan.kernels[0].name][-1].text.split("for start in")
    assert len(walks) == 2 and all("tl.reshape(" in walk and ", 1, larger))" in walk for walk in walks)
    assert "keep_dims" not in walks[0] and walks[1].count("keep_dims=True") == 2, "behind the walks"


def test_programs_within_one_long_row_load_once_what_it_has():
    made = planned(lambda x, y: x * y[:, None], (torch.randn(5, 5000), torch.randn(5)))
    (kernel,) = made.plan.kernels
    text = made.sources[kernel.name][-1].text
    assert "before + 1024 <= s1:" in text and "tl.load(p1 + (first))" in text and "    elif" in text
    made = planned(lambda x, y: x * y[:, None], (torch.randn(200, 998), torch.randn(200)))
    (kernel,) = made.plan.kernels
    assert "elif" not in made.sources[kernel.name][-1].text, "no program is"


def test_what_rows_share_is_loaded_by_neighbours_where_rows_begin_anywhere():
    """By eight elements a thread a softmax of columns of 32767 x 1021 in 16 bits took 103 us on an H200."""
    made = planned(lambda x, y, z: (x - y) / z, (torch.empty(200, 998).bfloat16(), torch.empty(998), torch.empty(998)))
    (kernel,) = made.plan.kernels
    sources = made.sources[kernel.name]
    tiles = [first(kernel, sources, n2=200, n3=n).tile for n in (1024, 1021, 67, 20)]
    assert [(tile.rows, tile.columns) for tile in tiles] == [(4, 256), (4, 256), (1, 1024), (1, 1024)]


def test_few_rows_of_columns_are_taken_at_once_where_there_were_few():
    made, kernel, sources = only(lambda x: x.amax(0), torch.randn(9, 998))
    few, more = (first(kernel, sources, n2=n, n3=998).tile for n in (16, 17))
    assert (few.columns, few.is_looped, more.columns) == (16, False, 64)


def test_walks_without_masks_have_several_blocks_on_their_way():
    """Of columns as of rows: a sum of 32768 x 1024 took 45 us on an H200 with one at a time, 36 with sizes known."""
    made = planned(lambda x: (x * 2).sum(0), (torch.randn(4000, 998),))
    text = made.sources[made.plan.kernels[0].name][-1].text
    assert "in tl.range(0, full, 64, num_stages=3):" in text


def test_columns_that_begin_anywhere_are_rows_abreast_copied_ahead():
    """Loaded one by one a softmax over columns of 262141 x 67 in 16 bits took 65 us on an H200, 51 so; a variance 38, and 20."""
    for program in (lambda x: x.softmax(0), lambda x: x.var(0)):
        made = planned(program, (torch.randn(4000, 998),))
        (source,) = made.sources[made.plan.kernels[0].name]
        assert str(source.tile.down[0].extent) == "(n3 * 4)" and "in tl.range(0, full, 64, num_stages=3):" in source.text


def test_elements_of_all_axes_are_one_dimension_where_no_size_divides():
    made, kernel, sources = only(lambda x, b: x.relu() + b, torch.randn(5, 37, 64), torch.randn(64))
    (source,) = sources  # rows of 64: aligned, and no length
    assert source.tile.down == () and "// s" not in source.text and "% s" not in source.text
    assert programs_of(source.sizing, at(kernel, n2=4, n3=40)) == 10


def test_the_last_program_of_many_elements_a_thread_takes_them_a_few_at_a_time():
    """Masks for all of them at once took more registers than all that the others do."""
    made, kernel, sources = only(lambda x: torch.nn.functional.gelu(x * 0.5 + 1), torch.randn(5, 37))
    (source,) = sources
    whole, last = source.text.split("else:")
    assert "mask=" not in whole and "for piece in range(0, 2048, 512):" in last and "mask=is_part" in last
    made, kernel, sources = only(lambda x: x.relu() + 1, torch.randn(5, 37))
    assert len(sources) == 1 and "piece" not in sources[0].text, "few elements cost few registers"


def test_rows_that_begin_anywhere_are_taken_several_at_a_time():
    """Of any length: their number makes each a multiple of what a thread loads."""
    made = planned(lambda x: x.sum(0), (torch.randn(600, 37).bfloat16(),))
    first, _ = made.plan.kernels
    *_, source = made.sources[first.name]
    assert str(source.tile.down[0].extent) == "(n3 * 8)" and 8 in source.multiples[len(first.params):]


def test_few_parts_of_columns_are_taken_at_once():
    """The second step of 64 parts is not a tile of 256, masked but for a quarter."""
    made = planned(lambda x: (x * 2).sum(0), (torch.randn(32767, 1021),))
    _, second = made.plan.kernels
    sources = made.sources[second.name]
    served = [first(second, sources, n2=rows, n3=columns).tile for rows, columns in ((32767, 1021), (262141, 67))]
    assert [(tile.columns, tile.is_looped) for tile in (*served, sources[-1].tile)] == [(64, False), (256, False), (256, True)]
    assert served[0].warps < served[1].warps


def test_lines_where_a_size_would_divide_each_position():
    made, kernel, sources = only(
        lambda x, y: x + y[:, None], torch.randn(5, 7, 37), torch.randn(5, 37))
    assert all(source.tile.down for source in sources)


def test_a_size_known_to_divide_is_told_to_the_compiler():
    made, kernel, sources = only(lambda x: x.mean(1), torch.randn(5, 37, 64))
    (source,) = sources
    assert 16 in source.multiples[len(kernel.params):]


def test_offsets_have_64_bits_from_the_plan_on_that_needs_them():
    made, _, sources = only(lambda x: x + 1, torch.randn(5, 37))
    assert "int64" not in sources[0].text
    sizes = {name: 1 << 16 for name in {s for test in made.conditions for s in symbols(test)}}
    assert not all(evaluate(test, sizes) for test in made.conditions)


def test_few_conditions_hold_for_a_plan():
    made, _, _ = only(lambda x: torch.softmax(x, -1), torch.randn(5, 37))
    assert len(made.conditions) <= 4


@needs_triton
@pytest.mark.parametrize("name", ["long_rows", "beside"])
def test_binaries_of_longer_rows(name):
    """Those of the template that the first call makes that is far from small ones."""
    program, arguments = PROGRAMS[name]
    kernels = planned(program, arguments(32, 300, 19), fixed=(0,)).plan.kernels
    assert len(build_gpu(kernels, gpu_target(TARGET.arch)).entries) >= len(kernels)


@needs_triton
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("norms", "movement", "mask", "scalars") else pytest.mark.slow) for name in PROGRAMS])
def test_binaries(name, monkeypatch):
    """Every source of every kernel compiles, and the image is stored as it is."""
    monkeypatch.setattr(rungs, "ROW_STEPS", 1)
    program, arguments = PROGRAMS[name]
    made = planned(program, arguments(*FIRST))
    image = build_gpu(made.plan.kernels, gpu_target(TARGET.arch))
    assert isinstance(image, Image) and decode(encode(image)) == image
    for kernel in made.plan.kernels:
        binaries = [image.binaries[k] for name, k in image.entries if name == kernel.name]
        assert binaries[0].code.startswith(b"\x7fELF")
        if sizes_of(kernel):
            assert all(isinstance(one.sizing, Sizing) and one.scratch_words >= 0 for one in binaries)
            last = binaries[-1].sizing
            assert not last.most and not last.multiples, "the last one is for all sizes"


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_local_has_the_name_of_a_helper(name):
    """A product of a remainder and lines that begin anywhere: `rest` was both."""
    program, arguments = PROGRAMS[name]
    for sources in planned(program, arguments(*FIRST)).sources.values():
        for source in sources:
            kernel = source.text[source.text.rindex("@triton.jit"):]
            assert not HELPERS.keys() & set(re.findall(r"^ *(\w+) = ", kernel, re.M)), source.name


@needs_triton
@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in PROGRAMS])
def test_interpreted(name):
    interpret("generate.sized_cases", name)
