"""A folder of entries that many processes share.

    <folder>/<name>-<hash>/<fields digest>/fields           the key's fields, why a miss is one
    <folder>/<name>-<hash>/<fields digest>/<hint>-<digest>  one entry: header line, then the payload

An entry is written under a temporary name and renamed, so it is there whole or not at all. Its
first line names the format and the digest of what follows; a file that does not match is removed
and counts as a miss, with the reason. Nothing is locked: renames are atomic, the same content has
the same name, and an entry that vanishes while it is read is a miss. When the folder grows over
`limit_bytes` the entries that were used longest ago go first.

Guarantees: `read` yields payloads exactly as `write` got them, or says why not; no file is touched
that is not an entry by its name and place, whatever else the folder holds; errors of the disk
(full, read-only) are misses with a reason, never exceptions.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from preheat.base.dataclass import dataclass
from preheat.base.events import emit
from preheat.store.key import Key, difference

FORMAT = "preheat-entry-1"
# Shelves, their keys and entries as `Key` and `write` name them: nothing else is ever removed.
_ENTRIES = "*-{0}/{1}/*-{2}".format(*("[0-9a-f]" * digits for digits in (8, 24, 16)))


def default_folder() -> Path:
    """Where this user's cache lies: PREHEAT_CACHE_DIR, else ~/.cache/preheat."""
    return Path(os.environ.get("PREHEAT_CACHE_DIR") or Path.home() / ".cache" / "preheat")


@dataclass(frozen=True)
class Found:
    """An entry that was read and verified."""

    path: Path
    payload: bytes


@dataclass(frozen=True)
class Disk:
    """The cache in `folder`, at most `limit_bytes` large."""

    folder: Path
    limit_bytes: int = 2 << 30

    def read(self, key: Key, *hints: str, is_told: bool = True) -> Iterator[Found]:
        """The verified entries of `key` with one of `hints`, newest first.

        A hint is a cheap digest of the call (shapes, dtypes); entries with others are not read.
        is_told   that there is none is an event
        """
        shelf = self.folder / key.shelf / key.digest
        try:
            paths = [path for hint in dict.fromkeys(hints) for path in shelf.glob(f"{hint}-*")]
            paths.sort(key=_last_use, reverse=True)
        except OSError as error:
            why = f"cannot read {shelf.name}: {error.strerror}"
            emit("cache", hit=False, name=key.name, why=why)
            return
        if not paths and is_told:
            emit("cache", hit=False, name=key.name, why=self._why_absent(key))
        for path in paths:
            payload, why = _load(path)
            if payload is None:
                emit("cache", hit=False, name=key.name, why=f"{path.name}: {why}; removed")
                _remove(path)
                continue
            _touch(path)
            yield Found(path, payload)

    def write(self, key: Key, hint: str, payload: bytes, name: str = "") -> Path | None:
        """Stores `payload`; its path, or None when the disk refused (an event says why).

        name   of what it is about: it takes the place of what had the name. By default its content's
        """
        digest = _digest(payload)
        shelf = self.folder / key.shelf / key.digest
        path = shelf / f"{hint}-{(name or digest)[:16]}"
        try:
            shelf.mkdir(parents=True, exist_ok=True)
            if not (shelf / "fields").exists():
                lines = "".join(f"{k}\t{v}\n" for k, v in sorted(key.fields.items()))
                _write_whole(shelf / "fields", lines.encode())
            _write_whole(path, f"{FORMAT} {digest}\n".encode() + payload)
        except OSError as error:
            emit("cache", hit=None, name=key.name, why=f"not stored: {error.strerror or error}")
            return None
        self._shrink()
        return path

    def entries(self) -> list[tuple[Path, int, float]]:
        """(path, bytes, time of last use) of every entry; the shelf is `path.parent.parent`."""
        found = []
        for path in self.folder.glob(_ENTRIES):
            try:
                stat = path.stat()
            except OSError:
                continue  # removed by another process meanwhile
            found.append((path, stat.st_size, stat.st_mtime))
        return found

    def clear(self) -> int:
        """Removes every entry; returns how many."""
        entries = self.entries()
        for path, _, _ in entries:
            _remove(path)
        return len(entries)

    def _shrink(self) -> None:
        entries = sorted(self.entries(), key=lambda row: row[2])
        total = sum(size for _, size, _ in entries)
        for path, size, _ in entries:
            if total <= self.limit_bytes:
                return
            _remove(path)
            shelf = path.parent.parent.name
            emit("cache", hit=None, name=shelf, why="removed: the cache is over its limit")
            total -= size

    def _why_absent(self, key: Key) -> str:
        neighbours = sorted((self.folder / key.shelf).glob("*/fields"), key=_last_use, reverse=True)
        for path in neighbours:
            if path.parent.name == key.digest:
                return "no entry for these shapes and types"
        for path in neighbours:
            try:
                rows = (line.split("\t", 1) for line in path.read_text().splitlines())
                return difference(key.fields, {name: value for name, value in rows})
            except (OSError, ValueError):
                continue
        return "nothing stored under this name"


def _load(path: Path) -> tuple[bytes | None, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    header, _, payload = data.partition(b"\n")
    words = header.decode("ascii", "replace").split()
    if len(words) != 2 or words[0] != FORMAT:
        return None, "not an entry of this format"
    if words[1] != _digest(payload):
        return None, "its digest does not match its content"
    return payload, ""


def _write_whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        _remove(Path(name))
        raise


def _digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        pass  # a read-only cache serves as well; only the order of removal is lost


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # gone already, or not ours to remove
