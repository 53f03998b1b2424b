"""The table of what was measured: one small entry a decision, beside the compiled programs.

    table = Tuned(disk, "NVIDIA H200", "triton 3.6.0 torch 2.11.0")
    table.put("tile", "3f81..", "128x64x64 warps 4 stages 4")
    table.get("tile", "3f81..")

Rows are keyed by what was measured (a digest), the device's name and the versions of what made and ran
it, not by machine, path or user: a folder that ships with a release needs no search on the next
machine of the same kind. Each row is a file of its own, so many processes may share one.
"""

import functools

from preheat.base.dataclass import dataclass, field
from preheat.store.calls import versions
from preheat.store.disk import Disk
from preheat.store.key import Key

FORMAT = "1"  # of the rows' texts and of what they stand for


@functools.lru_cache(maxsize=16)
def tuned_table(disk: Disk | None, device: str, compiler: str) -> "Tuned":
    """The table of what was measured on devices named `device` with code of `compiler` and the
    libraries of this process."""
    found = versions()
    return Tuned(disk, device, f"{compiler} torch {found['torch']}")


@dataclass(frozen=True)
class Tuned:
    """disk: None keeps rows in this process alone. versions: of the compiler and of the libraries."""

    disk: Disk | None
    device: str
    versions: str
    rows: dict[tuple[str, str], str] = field(default_factory=dict)

    def get(self, kind: str, digest: str) -> str | None:
        """What was decided about `digest`, or None."""
        found = self.rows.get((kind, digest))
        if found is None and self.disk is not None:
            for entry in self.disk.read(self._key(kind), digest, is_told=False):
                found = self.rows[kind, digest] = entry.payload.decode()
                break
        return found

    def put(self, kind: str, digest: str, text: str) -> None:
        """Keeps a decision for this process and later ones."""
        self.rows[kind, digest] = text
        if self.disk is not None:
            self.disk.write(self._key(kind), digest, text.encode())

    def _key(self, kind: str) -> Key:
        return Key(f"preheat.tuned.{kind}", {
            "device": self.device, "versions": self.versions, "format": FORMAT})
