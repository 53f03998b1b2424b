"""Keys with names: every field that decides whether an entry fits, so that a miss can say why.

    Key("model.Net.forward", {"code": "3f..", "torch": "2.13.0+cpu", "target": "x86_64 avx512f .."})

`name` says what is cached (people read it), `fields` what must be equal. Two keys with one name and
different fields are neighbours: `difference` names the first field in which they differ.
"""

import hashlib
import re
from collections.abc import Mapping

from preheat.base.dataclass import dataclass


@dataclass(frozen=True)
class Key:
    name: str
    fields: Mapping[str, str]

    @property
    def shelf(self) -> str:
        """A file name for all keys of this name."""
        readable = re.sub(r"[^A-Za-z0-9_.]+", "_", self.name)[-60:]
        return f"{readable}-{_hash(self.name)[:8]}"

    @property
    def digest(self) -> str:
        """A file name for exactly these fields."""
        return _hash(repr(sorted(self.fields.items())))


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The fields in which `found` differs from `wanted`, as a sentence; "" when they are equal."""
    rows = [
        f"{name} is {wanted.get(name, '(none)')!r}, stored {found.get(name, '(none)')!r}"
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    ]
    return "; ".join(rows)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
