"""The native driver against the Python executor: every plan, every feature taken away in turn."""

import ctypes
import weakref
from pathlib import Path

import pytest
import torch

import entries
from entries import Slow, entry_of
from plans import ZOO, f32, filled, hand_kernels, plan, write_plan
from preheat.bridge.ops import overload
from preheat.ir.graph import Ref
from preheat.ir.plan import LibraryCall
from preheat.ir.records import SHIM_DOUBLE_LIMIT, SHIM_WORD_LIMIT
from preheat.run import executable, library_rows, lowering, shims
from preheat.run.buffers import aligned_copy
from preheat.run.call_rows import Row, with_releases
from preheat.run.device import FEATURES, Context, context, function_of
from preheat.run.executable import Executable
from preheat.run.lowering import lower
from preheat.run.memory import Memory
from preheat.run.shims import SHIMS, ShimCall, _is_right

WITHOUT = [
    (),
    ("storage",),
    ("wrap",),
    ("shims",),
    ("blas",),
    ("batch",),
    ("openmp",),
    ("grad_mode",),
    ("storage", "wrap", "blas", "openmp"),
]


def same_layout(tensor):
    """A copy with the strides kept (clone closes gaps); an expanded tensor is not copied."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


@pytest.mark.parametrize("without", WITHOUT, ids=lambda names: " ".join(names) or "nothing")
@pytest.mark.parametrize("name", ZOO)
def test_native_equals_python(name, without):
    check_native(name, without)


@pytest.mark.parametrize("without", [(), ("wrap",), ("shims", "blas")], ids=" ".join)
@pytest.mark.parametrize("name", ZOO)
def test_an_arena_that_each_call_allocates(name, without, monkeypatch):
    monkeypatch.setattr(executable, "LEAN_BYTES", -1)
    assert not Executable(ZOO[name], hand_kernels(), is_lean=True).keeps_arena
    check_native(name, without, is_lean=True)


def check_native(name, without, is_lean=False):
    """The native call of a plan gives what the Python executor gives, twice."""
    given = ZOO[name]
    torch.manual_seed(0)
    inputs = [filled(t) for t in given.inputs]
    twins = [same_layout(t) for t in inputs]
    expected = Executable(given, hand_kernels(), is_lean=is_lean)(twins)
    slow = Slow()
    entry = entry_of(given, without=without, slow=slow, is_lean=is_lean)
    assert entry.is_native
    for _ in range(2):  # the second call takes a used frame
        inputs_now = [same_layout(t) for t in inputs]
        result = entry.call(*inputs_now)
        assert not slow.calls
        results = [result] if len(given.outputs) == 1 else list(result)
        for mine, theirs, output in zip(results, expected, given.outputs, strict=True):
            assert (
                mine.dtype == theirs.dtype
                and mine.stride() == theirs.stride() == output.type.strides
            )
            torch.testing.assert_close(mine, theirs)
        for mine, theirs in zip(inputs_now, twins):
            torch.testing.assert_close(mine, theirs)


def test_every_feature_is_found_here_and_can_be_left_out():
    assert context().have == set(FEATURES)
    for name in FEATURES:
        assert name not in context({name}).have
    assert not context({"native"}).have and "batch" not in context({"blas"}).have


def test_environment_leaves_features_out(monkeypatch):
    monkeypatch.setenv("PREHEAT_FORCE_FALLBACK", "blas,openmp")
    assert not {"blas", "openmp"} & context().have
    monkeypatch.setenv("PREHEAT_FORCE_FALLBACK", "bals")
    with pytest.raises(Exception, match="blas"):
        context()


def test_the_gil_is_released_around_long_stretches_only():
    rows = [
        Row("kernel", (), 15_000),
        Row("offset", (), 0),
        Row("product", (), 15_000),
        Row("library"),
        Row("kernel", (), 100),
        Row("end"),
    ]
    kinds = [row.kind for row in with_releases(rows)]
    assert kinds == [
        "release",
        "kernel",
        "offset",
        "product",
        "acquire",
        "library",
        "kernel",
        "end",
    ]


@pytest.mark.parametrize(
    "name", ["bf16 linear", "attention", "masked attention", "convolution with bias"]
)
def test_frequent_library_calls_go_through_shims(name):
    executable = Executable(ZOO[name], hand_kernels())
    rows = lower(executable, context(), Memory(), 0).rows
    shims = sum(call.op in SHIMS["cpu"] for call in ZOO[name].calls)
    assert [row.kind for row in rows].count("shim") == shims > 0


@pytest.mark.parametrize("op", SHIMS["cpu"])
def test_shims_agree_with_their_overloads(op):
    assert _is_right(op, context(), "cpu")


def test_shims_are_verified_before_they_are_needed(monkeypatch):
    """While kernels are compiled; under autocast, where none is used, not at all."""
    asked = []
    monkeypatch.setattr(shims, "_is_right", lambda op, known, device: asked.append((op, device)))
    plan = ZOO["attention"]
    with torch.autocast("cpu", torch.bfloat16):
        shims.verify(plan, "cpu")
    assert not asked
    shims.verify(plan, "cpu")
    assert set(asked) == {(call.op, "cpu") for call in plan.calls if call.op in SHIMS["cpu"]} and asked


def test_a_shim_that_reports_an_error_is_a_fault():
    slow = Slow()
    call = LibraryCall("aten.mm.default", (Ref(0), Ref(0)), (), (1,))  # [4, 6] @ [4, 6]
    x = f32(4, 6)
    wrong = plan((x,), [("input", 0, x), ("output", 0, x)], [], [call], [1])
    assert (
        entry_of(wrong, slow=slow).call(torch.randn(4, 6)) == "slow" and slow.calls[0][0] == "fault"
    )


def test_a_shim_result_of_another_layout_is_a_fault():
    slow = Slow()
    x, heads = f32(2, 5, 3, 4), f32(2, 3, 5, 4)  # the library gives permuted strides
    call = LibraryCall(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        (Ref(1), Ref(1), Ref(1)),
        (),
        (2, -1),
    )
    buffers = [
        ("input", 0, x),
        ("view", 0, f32(2, 3, 5, 4, strides=(60, 4, 12, 1)), 0),
        ("output", 0, heads),
    ]
    assert (
        entry_of(plan((x,), buffers, [], [call], [2]), slow=slow).call(torch.randn(2, 5, 3, 4))
        == "slow"
    )
    assert slow.calls[0][0] == "fault"


@pytest.fixture
def pointed(monkeypatch):
    """Entries whose kernels want aligned inputs, as those of a GPU do; the copies that were made."""
    copies = []

    class Pointed(Executable):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.pointed = executable._pointed_inputs(self.plan)

    def copy(tensor):
        made = aligned_copy(tensor)
        copies.append(weakref.ref(made))
        return made

    monkeypatch.setattr("entries.Executable", Pointed)
    monkeypatch.setattr(lowering, "aligned_copy", copy)
    monkeypatch.setattr(executable, "aligned_copy", copy)
    return copies


def test_inputs_that_are_not_aligned_are_copied(pointed):
    """The copies end with the call, and a result that is a view of an input is one of the input."""
    entry = entry_of(ZOO["alias of input"])
    for start in (0, 1, 0, 3, 4):
        x = torch.randn(28)[start : start + 24].view(4, 6)
        before, is_off = len(pointed), x.data_ptr() % 16 != 0
        double, view = entry.call(x)
        assert torch.equal(double, x + x) and view.data_ptr() == x.data_ptr() + 8
        assert len(pointed) - before == is_off and all(made() is None for made in pointed)
        again = entries.Executable(ZOO["alias of input"], hand_kernels())([x])
        assert torch.equal(again[0], double) and again[1].data_ptr() == view.data_ptr()


@pytest.mark.parametrize("fails", [False, True])
def test_another_device_is_current_while_the_calls_run(monkeypatch, fails):
    """Guards of torch by number: each is deleted once, on a fault too, and before the result is made."""
    seen, current = [], [0]

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    def create(index, at):
        ctypes.c_int64.from_address(at).value = 1000 + index
        current[0] = index
        seen.append(f"enter {index}")
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
    def delete(guard):
        current[0] = 0
        seen.append(f"leave {guard - 1000}")
        return 0

    def negate(x):
        seen.append(f"call on {current[0]}")
        if fails:
            raise RuntimeError("no")
        return -x

    words = {"create_guard": create, "delete_guard": delete}
    words = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in words.items()}
    fake = Context({**context().words, **words}, context().have, context().dtype_codes)

    def choose(writer, index):
        writer.append("device", (index if index < 0 else 3,))

    monkeypatch.setattr("entries.context", lambda without: fake)
    monkeypatch.setattr(lowering._Writer, "choose_device", choose)
    monkeypatch.setattr(library_rows, "called", lambda *_: negate)
    monkeypatch.setattr(library_rows, "shim_call", lambda *_: None)
    x, slow = f32(4, 6), Slow()
    given = plan(
        (x,), [("input", 0, x), ("output", 0, x)], [],
        [LibraryCall("aten.neg.default", (Ref(0),), (), (1,))], [1])
    entry, value = entry_of(given, slow=slow), torch.randn(4, 6)
    for _ in range(2):
        seen.clear()
        result = entry.call(value)
        assert result == "slow" if fails else torch.equal(result, -value)
        assert seen == ["enter 3", "call on 3", "leave 3"] and current == [0]


def test_inputs_that_are_written_must_be_aligned(pointed):
    slow = Slow()
    entry = entry_of(write_plan(), slow=slow)
    x = torch.randn(12)
    entry.call(x[:10])
    assert not slow.calls
    before = x.clone()
    assert entry.call(x[1:11]) == "slow" and slow.calls[0][0] == "fault"
    assert torch.equal(x, before) and not pointed


@pytest.mark.parametrize("x", [
    torch.arange(40.0)[1:].view(3, 13), torch.arange(40.0).view(4, 10)[1:, 1:7].t(),
    torch.arange(9.0)[1:2].expand(4, 1, 3), torch.arange(5)[3:3].view(0, 4), torch.tensor(2.5)])
def test_an_aligned_copy_is_the_tensor_elsewhere(x):
    made = aligned_copy(x)
    assert torch.equal(made, x) and made.stride() == x.stride() and made.dtype == x.dtype
    assert made.data_ptr() % 16 == 0 and (x.numel() == 0 or made.data_ptr() != x.data_ptr())


def test_autocast_changes_no_recorded_call():
    x = f32(4, 6)
    call = LibraryCall("aten.mm.default", (Ref(0), Ref(1)), (), (2,))
    buffers = [("input", 0, x), ("view", 0, f32(6, 4, strides=(1, 6)), 0), ("output", 0, f32(4, 4))]
    value = torch.randn(4, 6)
    expected = value @ value.T
    with torch.autocast("cpu", torch.bfloat16):
        entry = entry_of(plan((x,), buffers, [], [call], [2]))
        assert torch.equal(entry.call(value), expected) and torch.equal(
            entry.run([value]), expected
        )


def test_a_shim_may_give_numbers_and_undefined_tensors(monkeypatch):
    """As the attentions of a GPU do: the output, an undefined tensor, a number, one nobody reads."""
    make = function_of("aoti_torch_empty_strided")
    undefined = function_of("aoti_torch_new_uninitialized_tensor")
    pair = ctypes.c_int64 * 2
    seen = []

    @ctypes.CFUNCTYPE(
        ctypes.c_int32, *[ctypes.c_int64] * SHIM_WORD_LIMIT, *[ctypes.c_double] * SHIM_DOUBLE_LIMIT)
    def attention(*words):
        first, second, third, fourth = map(ctypes.c_void_p, words[1:5])
        for at in (first, fourth):
            code = ctypes.c_int32(context().dtype_codes["float32"])
            make(ctypes.c_int64(2), pair(4, 6), pair(6, 1), code, 0, 0, at)
        undefined(second)
        ctypes.c_int64.from_address(third.value).value = 17
        seen.append(words[SHIM_WORD_LIMIT])
        return 0

    x = f32(4, 6)
    given = plan(
        (x,), [("input", 0, x), ("output", 0, x)], [],
        [LibraryCall("aten.mm.default", (Ref(0),), (), (1, -1, -1, -1))], [1])
    address = ctypes.cast(attention, ctypes.c_void_p).value
    shim = ShimCall(address, False, (("tensor", 0),), (0.5,), numbers=(2,))
    monkeypatch.setattr(library_rows, "shim_call", lambda *_: shim)
    entry = entry_of(given)
    for _ in range(3):
        assert entry.call(torch.randn(4, 6)).shape == (4, 6)
    assert seen == [0.5] * 3


def test_shims_of_a_gpu_take_as_many_words_as_there_are(monkeypatch):
    """Their calls as they would be on a machine with one: every word and number in its place."""
    monkeypatch.setattr(shims, "function_of", lambda name, library: ctypes.CFUNCTYPE(None)(print))
    for op, shim in SHIMS["cuda"].items():
        made = shims._call(op, shim.example()[0], (), "cuda")
        assert made is not None and made.numbers == shim.numbers, op
        returns = [r.type for r in overload(op)._schema.returns]
        assert [k for k, type in enumerate(returns) if "int" in str(type).lower()] == list(shim.numbers)
        wanted = header(shim.symbol)
        if wanted is not None:  # the declaration in torch's own header
            kinds = [kind for kind, _ in made.words]
            assert len(kinds) + len(made.doubles) == wanted.count(",") + 1 - len(returns) * (
                not shim.takes_out) - shim.takes_out
            results = wanted.split(", ")[-len(returns):]
            assert [k for k, r in enumerate(results) if "int64_t*" in r] == list(shim.numbers)


def header(symbol):
    """What torch's header declares `symbol` with; None where the header is not installed."""
    folder = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated"
    files = [folder / "c_shim_cuda.h"] if (folder / "c_shim_cuda.h").exists() else []
    texts = [line for file in files for line in file.read_text().splitlines()]
    found = [line for line in texts if f" {symbol}(" in line]
    return found[0].partition(symbol)[2] if found else None
