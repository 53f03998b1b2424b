"""The command line: `explain` of scripts and functions, `cache clear`, and errors that help."""

import sys
import textwrap

import pytest
from click.testing import CliRunner

from preheat.base.errors import UserError
from preheat.cli import commands

SCRIPT = textwrap.dedent("""
    import sys, torch, preheat

    @preheat.compile
    def f(x):
        return torch.relu(x) + len(sys.argv)

    def make():
        return f, [torch.ones(3)]

    def wrong():
        return f

    if __name__ == "__main__":
        with torch.no_grad():
            f(torch.ones(3))
        print("arguments", sys.argv[1:])
        sys.exit(0)
""")


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "plain.py").write_text("print('nothing')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREHEAT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(commands, arguments, catch_exceptions=False).output


def test_explain_a_script_with_its_arguments(here):
    found = run("explain", "--html", "page.html", "script.py", "a", "--b")
    assert "arguments ['a', '--b']" in found and "script.py: 1 graph, 0 breaks" in found
    assert "1 graph" in (here / "page.html").read_text()


@pytest.mark.parametrize("end, code", [
    ("sys.exit(3)", 3), ("sys.exit('no data')", 1), ("1 / 0", 1), ("sys.exit()", 0), ("", 0)])
def test_explain_ends_as_the_script_does(here, end, code):
    (here / "script.py").write_text(SCRIPT.replace("sys.exit(0)", end))
    found = CliRunner().invoke(commands, ["explain", "script.py"], catch_exceptions=False)
    assert found.exit_code == code and "script.py: 1 graph" in found.output
    assert ("no data" in found.output) == ("no data" in end)


def test_explain_a_function_of_a_script_or_a_module(here):
    assert "f: 1 graph, 0 breaks" in run("explain", "script.py:make")
    assert "f: 1 graph, 0 breaks" in run("explain", "script:make")


@pytest.mark.parametrize("target, words", [
    ("plain.py", "plain.py called nothing that is compiled: put preheat.compile around"),
    ("absent.py", "there is no script 'absent.py'"),
    ("script.py:mak", "script.py has no 'mak': did you mean 'make'"),
    ("script.py:wrong", "must be a function without arguments that returns (callable, args)"),
    ("absent:make", "cannot load 'absent'"),
])
def test_explain_says_what_to_do(here, target, words):
    with pytest.raises(UserError) as error:
        run("explain", target)
    assert words in str(error.value)


@pytest.mark.parametrize("arguments, words", [
    (["explain", ":make"], "takes package.module:name, got ':make'"),
    (["explain", "script:"], "takes package.module:name, got 'script:'"),
    (["explain", "--html", "nowhere/page.html", "script.py"], "there is no folder .*nowhere"),
    (["bench", "--models", ","], "names none: leave it out for all"),
    (["bench", "--models", "mlp_1,nope"], "unknown model 'nope'"),
])
def test_wrong_arguments_run_nothing(here, arguments, words):
    with pytest.raises(UserError, match=words):
        run(*arguments)


def test_cache_clear_as_words(here):
    run("explain", "script.py")
    assert "entries" in run("cache") and "entries" in run("cache", "show")
    assert "removed" in run("cache", "clear")
    assert "removed 0 entries" in run("cache", "--clear")


def test_doctor_prints_the_page_of_reasons(here):
    assert run("doctor", "--reasons").startswith("# Breaks")
