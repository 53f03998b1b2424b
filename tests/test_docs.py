"""The documents: what they show runs, and what they name exists."""

import doctest
import re
from collections import Counter
from pathlib import Path

import pytest

import preheat
from preheat.report.breaks_page import breaks_page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name, least", [("architecture", 20), ("options", 10)])
def test_what_a_page_shows_runs(name, least):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(
        str(ROOT / "docs" / f"{name}.md"), module_relative=False, optionflags=flags
    )
    assert tried > least and failed == 0


def test_the_page_of_options_has_them_all():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for name, option in preheat.options().items():
        assert f"| `{name}` | `{option.default!r}` | {option.meaning} |" in text, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_find_them(page):
    for link, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        assert heading in _headings(page.parent / link if link else page), f"{link}#{heading}"


def _headings(page: Path) -> set[str]:
    """As GitHub names them: words with hyphens between, the second of a name with a number."""
    names, seen = set(), Counter()
    for title in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M):
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_links_exist(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|md))`", text):
        assert any((base / name).exists() for base in (ROOT, ROOT / "preheat")), name
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M), (
            target
        )


def test_the_page_of_breaks_is_up_to_date():
    found = (ROOT / "docs" / "breaks.md").read_text(encoding="utf-8")
    assert found == breaks_page(), "run: preheat doctor --reasons > docs/breaks.md"


def test_the_readme_fits_a_screen():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 65
