"""What graphs of one stream share: who stays, who makes room, and when memory is given back."""

import gc

import pytest
import torch

from fake_cuda import FakeCuda
from preheat.run import gpu, lanes
from preheat.run.lanes import Lane, Unsafe
from preheat.run.library import Fault

MB = 1 << 20


class Pool:
    def __init__(self, *sizes):
        self.segments = [{"address": 1000 * k, "total_size": size} for k, size in enumerate(sizes)]

    def snapshot(self):
        return self.segments


class Graph:
    def __init__(self, used):
        self.used = used

    def __getitem__(self, field):
        assert field == "used"
        return self.used


class Owner:
    """A `Replays`."""

    def __init__(self, lane):
        self.lane, self.graphs = lane, []

    def add(self, used):
        self.graphs.append(Graph(used))
        self.lane.keep(self, self.graphs[-1])

    def forget(self, graph):
        self.graphs.remove(graph)
        self.lane.forget(graph)


@pytest.fixture
def lane(monkeypatch):
    class Driver(FakeCuda):
        waited = 0

        def cuStreamSynchronize(self, stream):
            self.waited += 1
            return 0

    driver = Driver()
    monkeypatch.setattr(gpu, "driver", lambda: driver)
    made = Lane.__new__(Lane)  # without a device
    made.index, made.target, made._pool, made._graphs = 0, 0, Pool(2 * MB, 20 * MB), []
    made.driver = driver
    return made


def test_what_may_be_recorded(lane):
    lane.admit(10 * MB, 22 * MB)
    with pytest.raises(Unsafe, match="30 MB.*graph_bytes, 22 MB"):
        lane.admit(30 * MB, 22 * MB)
    with pytest.raises(Unsafe, match="22 MB"):
        lane.admit(0, 21 * MB)


def test_the_graph_launched_longest_ago_makes_room(lane, monkeypatch):
    monkeypatch.setattr(lanes, "MOST_GRAPHS", 3)
    first, second = Owner(lane), Owner(lane)
    for owner, used in ((first, 5), (second, 2), (first, 9), (second, 7)):
        owner.add(used)
    assert [g.used for g in first.graphs] == [5, 9] and [g.used for g in second.graphs] == [7]


def test_who_has_ended_takes_its_graphs_along(lane):
    owner, other = Owner(lane), Owner(lane)
    owner.add(1)
    other.add(2)
    lane.trim()
    assert lane._pool is not None
    del owner
    gc.collect()
    lane.trim()
    assert lane._pool is not None
    del other
    gc.collect()
    lane.trim()
    assert lane._pool is None and lane.memory() == (None, ()) and lane.driver.waited == 1


@pytest.mark.parametrize("out_of_memory", [False, True])
def test_a_recording_that_failed(lane, out_of_memory):
    owner = Owner(lane)
    owner.add(1)
    try:
        try:
            raise torch.OutOfMemoryError("no") if out_of_memory else ValueError("no")
        except Exception as error:
            raise Fault("a call raised") from error
    except Fault as fault:
        lane.settle(100 * MB, fault)
    assert (lane._pool is None) == out_of_memory and bool(owner.graphs) != out_of_memory
    owner.graphs or owner.add(2)
    lane._pool = Pool(200 * MB)
    lane.settle(100 * MB, Unsafe("too much"))
    assert lane._pool is None and not owner.graphs
