"""Our `dataclass` does what the standard library's does with the same class body."""

import copy
import dataclasses
import functools
import pickle
from dataclasses import FrozenInstanceError

import pytest

from preheat.base.dataclass import dataclass, field


@dataclass(frozen=True, slots=True)
class Slotted:
    """A pair."""

    left: int
    right: tuple = ()


@dataclass(frozen=True)
class Frozen:
    left: int
    right: tuple = ()

    @functools.cached_property
    def total(self):
        return self.left + sum(self.right)


@dataclass
class Plain:
    left: int
    right: list = field(default_factory=list)
    late: int = field(init=False)

    def __post_init__(self):
        self.late = self.left + 1


@dataclass(frozen=True, slots=True)
class Single:
    value: float

    def __str__(self):
        return f"<{self.value}>"


@dataclass(frozen=True, slots=True)
class Empty:
    pass


STANDARD = {
    cls: dataclasses.dataclass(**how)(type(cls.__name__, (), {
        "__annotations__": cls.__annotations__, "__qualname__": cls.__qualname__,
        **({"right": ()} if cls.__annotations__.get("right") is tuple else {}),
    }))
    for cls, how in (
        (Slotted, {"frozen": True, "slots": True}), (Frozen, {"frozen": True}),
        (Single, {"frozen": True, "slots": True}), (Empty, {"frozen": True, "slots": True}),
    )
}
CASES = [(Slotted, (1, (2,))), (Slotted, (1,)), (Frozen, (1, (2,))), (Single, (1.5,)), (Empty, ())]


@pytest.mark.parametrize("cls, values", CASES)
def test_it_answers_as_the_standard_librarys(cls, values):
    ours, theirs = cls(*values), STANDARD[cls](*values)
    assert repr(ours) == repr(theirs) and hash(ours) == hash(theirs)
    assert dataclasses.astuple(ours) == dataclasses.astuple(theirs)
    assert cls.__match_args__ == STANDARD[cls].__match_args__
    assert ours == cls(*values) and ours != theirs and ours != values
    assert copy.deepcopy(ours) == ours and pickle.loads(pickle.dumps(ours)) == ours
    assert dataclasses.replace(ours) == ours and dataclasses.replace(ours) is not ours
    assert hasattr(ours, "__dict__") is hasattr(theirs, "__dict__")
    assert cls.__doc__


def test_equality_is_of_one_class_and_sees_the_same_nan_as_itself():
    nan = float("nan")
    assert Single(nan) == Single(nan) and Single(nan) != Single(float("nan"))
    assert Slotted(1, (2,)) != Frozen(1, (2,))


@pytest.mark.parametrize("value", [Slotted(1), Frozen(1)])
def test_a_frozen_one_refuses(value):
    for change in (lambda: setattr(value, "left", 2), lambda: delattr(value, "left")):
        with pytest.raises(FrozenInstanceError):
            change()
    assert value.left == 1 and Frozen(2, (3,)).total == 5


def test_arguments_are_checked_at_the_first_instance_and_after():
    @dataclass(frozen=True, slots=True)
    class Fresh:
        left: int
        right: int = 0

    for _ in range(2):
        with pytest.raises(TypeError):
            Fresh()
        with pytest.raises(TypeError):
            Fresh(1, 2, 3)
        assert Fresh(1, right=5) == Fresh(left=1, right=5)
    assert "on_demand" not in Fresh.__init__.__qualname__


def test_a_plain_one_has_fresh_defaults_and_no_hash():
    first, second = Plain(1), Plain(1)
    assert first == second and first.right is not second.right and first.late == 2
    first.right.append(3)
    assert first != second and Plain.__hash__ is None
    assert copy.copy(first) == first and copy.copy(first).right is first.right


def test_own_methods_win():
    assert str(Single(2.0)) == "<2.0>" and repr(Single(2.0)) == "Single(value=2.0)"


def test_a_default_before_a_field_without_one_is_refused():
    @dataclass(frozen=True, slots=True)
    class Wrong:
        left: int = 0
        right: int

    with pytest.raises(TypeError, match="'left'"):
        Wrong(1, 2)
