"""Options, modes and backends: complete on the way in, clear when wrong."""

import pytest

from preheat.base.errors import UserError
from preheat.base.options import OPTIONS, checked_backend, checked_mode, checked_options


def test_defaults_are_complete_and_typed():
    values = checked_options(None)
    assert values.keys() == OPTIONS.keys()
    for name, option in OPTIONS.items():
        assert type(values[name]) is option.type and option.meaning


def test_a_float_may_be_given_as_an_int():
    assert checked_options({"memory_budget": 0})["memory_budget"] == 0.0


@pytest.mark.parametrize(
    "given, words",
    [
        ({"recompile_limits": 4}, ["recompile_limits", "did you mean 'recompile_limit'"]),
        ({"cache": 1}, ["cache", "bool", "1"]),
        ({"recompile_limit": True}, ["recompile_limit", "int"]),
        ({"recompile_limit": 0}, ["at least 1"]),
        ({"memory_budget": 1.5}, ["memory_budget", "at most 1"]),
        ({"memory_budget": float("nan")}, ["finite number", "nan"]),
        ({"memory_budget": True}, ["float", "bool"]),
        ({3: 4}, ["unknown option 3"]),
        ("cache", ["dict", "str"]),
    ],
)
def test_wrong_options_name_what_was_meant(given, words):
    with pytest.raises(UserError) as error:
        checked_options(given)
    assert all(word in str(error.value) for word in words)


def test_modes_and_backends():
    assert checked_mode(None) == "default" and checked_mode("max-autotune") == "max-autotune"
    assert checked_backend("eager", str.upper) == "eager"
    assert checked_backend("aot_eager", str.upper) == "AOT_EAGER"
    assert checked_backend(max, str.upper) is max
    with pytest.raises(UserError, match="reduce-overhead"):
        checked_mode("reduce_overhead")
    with pytest.raises(UserError, match="a name or a callable"):
        checked_backend(None, str.upper)
