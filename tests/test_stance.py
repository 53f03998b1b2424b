"""The stance: force_eager, eager_on_recompile, fail_on_recompile; as function, block, decorator."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import preheat
from preheat.base.stance import STANCES, present

X = torch.arange(4.0)
NO_CACHE = {"cache": False}


@pytest.fixture(autouse=True)
def default_stance():
    with torch.no_grad():
        yield
    preheat.stance("default")


def captures(call):
    before = preheat.counters()["captures"]
    result = call()
    return result, preheat.counters()["captures"] - before


def made(fn=lambda x: torch.relu(x) + 1):
    return preheat.compile(fn, options=NO_CACHE)


def line():
    """A compiled function that adds 1 where it was captured and 2 where plain Python runs it."""
    def body(x):
        return torch.relu(x) + (1 if preheat.is_compiling() else 2)

    return preheat.compile(body, options=NO_CACHE)


def compiled_answers(fn, x=X):
    """Whether compiled code of a `line()` ran."""
    return {1.0: True, 2.0: False}[(fn(x) - torch.relu(x))[0].item()]


def test_force_eager_and_back():
    fn = line()
    assert compiled_answers(fn) and compiled_answers(fn)
    preheat.stance("force_eager")
    assert not compiled_answers(fn) and not compiled_answers(fn)
    assert captures(lambda: compiled_answers(fn, torch.ones(7)))[1] == 0
    preheat.stance("default")
    result, count = captures(lambda: compiled_answers(fn))
    assert result and count == 0  # what was compiled before is still there


def test_eager_on_recompile():
    fn = line()
    with preheat.stance("eager_on_recompile"):
        assert not compiled_answers(fn)
    assert compiled_answers(fn)
    with preheat.stance("eager_on_recompile"):
        for _ in range(2):
            assert compiled_answers(fn)
            before = preheat.counters()
            assert not compiled_answers(fn, torch.ones(9))
            assert preheat.counters() == before
    result, count = captures(lambda: compiled_answers(fn, torch.ones(9)))
    assert result and count == 1


def test_fail_on_recompile_says_why():
    fn = line()
    with preheat.stance("fail_on_recompile"), pytest.raises(preheat.RecompileError) as error:
        fn(X)
    assert "body has to be compiled since nothing is compiled for it yet" in str(error.value)
    assert compiled_answers(fn)
    with preheat.stance("fail_on_recompile"):
        assert compiled_answers(fn)
        with pytest.raises(RuntimeError, match=r"f32\[4\]") as error:  # as torch's
            fn(torch.ones(9))
        assert compiled_answers(fn)
    assert isinstance(error.value, preheat.UserError)


def test_what_runs_eager_for_good_does_not_fail():
    fn = made(lambda x: (y for y in [x]))
    for _ in range(3):
        list(fn(X))
    with preheat.stance("fail_on_recompile"):
        assert torch.equal(list(fn(X))[0], X)


def test_blocks_nest_and_end_with_exceptions():
    with preheat.stance("force_eager"):
        with preheat.stance("fail_on_recompile"):
            assert present.name == "fail_on_recompile"
        assert present.name == "force_eager"
        with pytest.raises(KeyError), preheat.stance("default"):
            raise KeyError
        assert present.name == "force_eager"
    assert present.name == "default"


def test_decorator():
    fn = line()
    assert compiled_answers(fn)

    @preheat.stance("force_eager")
    def inside(depth=2):
        """Its doc."""
        return [compiled_answers(fn), *(inside(depth - 1) if depth else ())]

    assert present.name == "default" and inside.__doc__ == "Its doc."
    assert inside() == [False] * 3 and present.name == "default"
    assert compiled_answers(fn)
    for wrong in (type("C", (), {}), (lambda: (yield)), 3):
        with pytest.raises(preheat.UserError, match="decorates functions"):
            preheat.stance("force_eager")(wrong)
        assert present.name == "default"


@pytest.mark.parametrize("arguments, words", [
    (("force_eagre",), "did you mean 'force_eager'"),
    ((3,), "unknown stance 3"),
    (("eager_then_compile",), "not needed"),
])
def test_wrong_stances_change_nothing(arguments, words):
    with pytest.raises(preheat.UserError, match=words):
        preheat.stance(*arguments)
    for unsafe in ({"skip_guard_eval_unsafe": True}, {"force_backend": "eager"}):
        with pytest.raises(preheat.UserError, match=next(iter(unsafe))):
            preheat.stance("default", **unsafe)
    assert present.name == "default" and all(STANCES.values())


def test_one_stance_for_all_threads():
    fn = line()
    assert compiled_answers(fn)
    found = []
    with preheat.stance("force_eager"):
        def work():
            with torch.no_grad():
                found.append(compiled_answers(fn))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [False]


def test_threads_that_call_while_the_stance_changes():
    fn = line()
    assert compiled_answers(fn)
    stop, wrong = threading.Event(), []

    def work():
        with torch.no_grad():
            while not stop.is_set():
                compiled_answers(fn)

    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    for _ in range(200):
        with preheat.stance("force_eager"):
            if compiled_answers(fn):
                wrong.append(1)
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong and compiled_answers(fn)


def test_modules_and_compiled_code_within():
    model = preheat.compile(torch.nn.Linear(4, 4), options=NO_CACHE)
    expected = model(X)
    with preheat.stance("fail_on_recompile"):
        assert torch.equal(model(X), expected)
        with pytest.raises(preheat.RecompileError):
            model(torch.ones(2, 4))


def test_a_compiled_function_may_take_a_stance():
    inner = line()
    assert compiled_answers(inner)

    def outer(x):
        with preheat.stance("force_eager"):
            y = x * 2
        return y

    fn = made(outer)
    for _ in range(3):
        assert torch.equal(fn(X), X * 2) and present.name == "default"
    assert compiled_answers(inner)


def test_followers_are_not_kept_alive():
    compiled = preheat.base.marks.compiled_of(made())
    gone = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert gone() is None


def test_taking_a_stance_loads_nothing():
    program = (
        "import sys, preheat\n"
        "preheat.stance('force_eager')\n"
        "assert 'torch' not in sys.modules and 'preheat.face' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_new_path_in_the_middle_of_a_call():
    done = []

    @preheat.disable
    def outside(x):
        done.append(1)
        return len(done)

    def fn(x):
        y = x * 2
        outside(y)
        for _ in range(20):
            y = torch.tanh(y)
        if y.max() > 0.1:
            return y + 1
        return y - 1

    compiled = made(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), fn(X))
    done.clear()
    with preheat.stance("eager_on_recompile"):
        before = preheat.counters()["captures"]
        for _ in range(2):
            torch.testing.assert_close(compiled(-X), plain(-X))
        assert len(done) == 2 and preheat.counters()["captures"] == before
        assert compiled(X).max() > 1
    done.clear()
    with preheat.stance("fail_on_recompile"):
        assert compiled(X).max() > 1
        with pytest.raises(preheat.RecompileError, match="fn has to be compiled"):
            compiled(-X)
    assert len(done) == 2
    torch.testing.assert_close(compiled(-X), plain(-X))


def plain(x):
    """What the negative path of the program above gives."""
    y = x * 2
    for _ in range(20):
        y = torch.tanh(y)
    return y - 1
