"""The Python checker and the native one agree with each other and with what a mutation does."""

import random

import pytest
from bound import Bound
from mutations import MUTATIONS, NAMES
from native_rows import native_check

from preheat.bridge.ambient import AMBIENT
from preheat.run.claims import CLAIM_ROWS
from preheat.run.layout import Layout


@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=NAMES)
def test_mutation(number):
    name, change, breaks = MUTATIONS[number]
    bound = Bound()
    assert bound.native()
    with bound.world.stack:
        change(bound.world)
        failure = bound.checker.check(bound.world.args, bound.world.kwargs)
        passes = bound.native()
        assert (failure is not None) == breaks, failure
        assert not (passes and breaks), "the native checker accepts what the Python one refuses"
        if breaks:
            assert str(failure)
            assert not repaired(bound), "repairs made the native checker accept it"
        else:
            repaired(bound)
            assert bound.bind() is None and bound.native()


def repaired(bound: Bound) -> bool:
    """Whether the native checker accepts the call once every row that can be repaired was."""
    for _ in range(20):
        row = native_check(bound.rows, bound.world.arguments)
        if row == -1 or not bound.rows.repair(row):
            break
    return bound.native()


FALLBACKS = (*Layout.__dataclass_fields__, "tensors", *CLAIM_ROWS, *AMBIENT)


@pytest.mark.parametrize("absent", FALLBACKS)
def test_without_a_probe(absent):
    """What one failed probe sends to Python is still judged rightly."""
    chosen = random.Random(absent).sample(MUTATIONS, 3)
    for name, change, breaks in chosen:
        bound = Bound(without=(absent,))
        with bound.world.stack:
            change(bound.world)
            passes = bound.native()
            assert not (passes and breaks), name
            if not breaks:
                assert bound.bind() is None and bound.native(), name


def test_without_any_probe():
    for name, change, breaks in random.Random(0).sample(MUTATIONS, 12):
        bound = Bound(without=FALLBACKS)
        with bound.world.stack:
            change(bound.world)
            assert bound.native() is not breaks, name


@pytest.mark.parametrize("seed", range(8))
def test_sequences(seed):
    """Random changes, one after the other: whenever the native rows pass, the Python checker agrees."""
    chance = random.Random(seed)
    steady = [m for m in MUTATIONS if not m[2]]
    bound = Bound()
    with bound.world.stack:
        for name, change, breaks in chance.choices(steady, k=10) + chance.choices(MUTATIONS, k=3):
            try:
                change(bound.world)
            except (AttributeError, KeyError, IndexError, TypeError, RuntimeError):
                continue  # an earlier change removed what this one needs
            passes = bound.native()
            failure = bound.checker.check(bound.world.args, bound.world.kwargs)
            assert not (passes and failure), (name, failure)
            if failure is None:
                assert bound.bind() is None and bound.native(), name


def test_ordinary_guards_need_no_python():
    assert [str(guard) for guard in Bound().rows.in_python if guard.kind != "keys"] == []


UNRELATED = ("add another attribute", "another global", "write and write back", "instance hides a method")


@pytest.mark.parametrize("name", UNRELATED)
def test_repair(name):
    """A dict that changed where nobody looked costs one look at that dict."""
    bound = Bound()
    dict((n, change) for n, change, _ in MUTATIONS)[name](bound.world)
    assert not bound.native() and repaired(bound)
