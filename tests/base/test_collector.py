"""The paused collector: nothing collected inside, and what lasts is not walked afterwards."""

import gc
import weakref

import pytest

from preheat.base import collector
from preheat.base.collector import paused_collector


class Node:
    pass


@pytest.fixture(autouse=True)
def nothing_is_frozen(monkeypatch):
    monkeypatch.setattr(collector, "_was_frozen", False)
    gc.unfreeze()
    yield
    gc.freeze()  # as the session has it


@pytest.fixture
def collections():
    """The generations collected since."""
    found = []

    def note(phase, info):
        if phase == "stop":
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_what_lasts_is_not_walked(collections):
    for is_lasting, expected in ((False, True), (True, False)):
        collections.clear()
        with paused_collector(is_lasting):
            kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        collected = bool(collections) or bool([[] for _ in range(3)] and collections)
        assert collected == expected and len(kept)


def test_nothing_is_collected_inside_and_the_state_comes_back(collections):
    with paused_collector():
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert kept and not collections and not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_collector(is_lasting=True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_cycles_of_others_are_still_collected():
    node = Node()
    node.itself, seen = node, weakref.ref(node)
    with paused_collector(is_lasting=True):
        del node
    gc.collect()
    assert seen() is None


def test_objects_that_someone_froze_stay_frozen_and_are_counted_once(monkeypatch):
    gc.freeze()
    count, counted = gc.get_freeze_count, []
    frozen = count()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or count())
    for _ in range(3):
        with paused_collector(is_lasting=True):
            pass
    assert len(counted) == 1 and count() == frozen > 0
