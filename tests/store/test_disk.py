"""The cache on disk: whole entries, verified reads, reasons of misses, many processes."""

import multiprocessing

from preheat.base.events import subscribe
from preheat.store.disk import Disk
from preheat.store.key import Key, difference

KEY = Key("net.forward", {"code": "a1", "torch": "2.13.0"})


def reasons_of(action):
    heard = []
    unsubscribe = subscribe(heard.append, ["cache"])
    try:
        action()
    finally:
        unsubscribe()
    return [event.data["why"] for event in heard]


def test_what_was_written_is_read(tmp_path):
    disk = Disk(tmp_path)
    disk.write(KEY, "s1", b"payload")
    assert [found.payload for found in disk.read(KEY, "s1")] == [b"payload"]
    assert list(disk.read(KEY, "s2")) == []


def test_a_miss_names_the_field_that_differs(tmp_path):
    disk = Disk(tmp_path)
    disk.write(KEY, "s1", b"payload")
    other = Key("net.forward", {"code": "b2", "torch": "2.13.0"})
    assert reasons_of(lambda: list(disk.read(other, "s1"))) == ["code is 'b2', stored 'a1'"]
    assert reasons_of(lambda: list(disk.read(KEY, "s9"))) == ["no entry for these shapes and types"]
    stranger = Key("another", {})
    assert reasons_of(lambda: list(disk.read(stranger, "s1"))) == ["nothing stored under this name"]


def test_every_single_corruption_is_a_miss_and_is_removed(tmp_path):
    disk = Disk(tmp_path)
    path = disk.write(KEY, "s1", b"payload")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x", b"foreign file", whole.replace(b"pay", b"pax")):
        path.write_bytes(damaged)
        assert list(disk.read(KEY, "s1")) == []
        assert not path.exists()


def test_the_folder_stays_under_its_limit(tmp_path):
    disk = Disk(tmp_path, limit_bytes=1000)
    for number in range(20):
        disk.write(KEY, f"s{number}", bytes(200))
    assert sum(size for _, size, _ in disk.entries()) <= 1000
    assert list(disk.read(KEY, "s19"))


def test_a_folder_that_cannot_be_written_is_a_reason_and_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    disk = Disk(blocked / "cache")
    assert disk.write(KEY, "s1", b"payload") is None


def test_difference_is_empty_for_equal_fields():
    assert difference({"a": "1"}, {"a": "1"}) == ""


def _hammer(folder, worker):
    disk = Disk(folder)
    for number in range(25):
        disk.write(KEY, "shared", b"same content")
        disk.write(KEY, "own", f"{worker} {number}".encode())
        for found in disk.read(KEY, "shared"):
            assert found.payload == b"same content"


def test_sixteen_processes_share_one_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_hammer, args=(tmp_path, worker)) for worker in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert len(list(Disk(tmp_path).read(KEY, "own"))) == 16 * 25
    assert not list(tmp_path.glob("**/.new*"))
