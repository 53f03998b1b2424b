"""What a break of a graph is, and what each kind of it costs: the forms of the table `base/reasons.py`."""

from preheat.base.dataclass import dataclass


@dataclass(frozen=True)
class Kind:
    """What becomes of the call: `title` for people, `cost` as a sentence."""

    title: str
    cost: str


@dataclass(frozen=True)
class Reason:
    """sentence  completes "the call is not one graph because it ..."
    hint      one thing to do
    kind      a row of `KINDS`: what it costs
    before, after   the smallest program of this kind, and the same without the break"""

    sentence: str
    hint: str
    kind: str = "eager"
    before: str = ""
    after: str = ""


KINDS: dict[str, Kind] = {
    "host": Kind(
        "host step",
        "the function is called anew on every call, and the compiled code goes on after it"),
    "path": Kind(
        "path",
        "the compiled code stops to read the value; each way that the program goes from there is "
        "compiled once"),
    "write": Kind(
        "write read back",
        "the compiled code stops, so that what was written is there, and goes on after it"),
    "eager": Kind(
        "eager part",
        "from there to its end the call runs as plain Python; at the entry, the whole call does"),
    "limit": Kind(
        "limit",
        "calls that none of the compiled variants fits run as plain Python from then on"),
}
