"""The docs say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from botpool.settings import API_KEY, OLD_NAMES, Settings
from docs.pages import PAGES

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_made_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path](), "run `make docs`"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_docs_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_make_target_that_the_docs_name_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for path in MARKDOWN
        for target in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named <= targets


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_the_docs_name_is_there(path: Path) -> None:
    old = OLD_NAMES.values() if path.name in {"CHANGELOG.md", "settings.md"} else ()
    known = {f"BOTPOOL_{name.upper()}" for name in (*Settings.model_fields, *old)}
    given = {"BOTPOOL_URL", "BOTPOOL_SLOT_TOKEN", API_KEY}  # to containers and to commands
    tests = {name for name in _names(path) if name.startswith("BOTPOOL_TEST_")}
    assert _names(path) - known - given - tests == set()


def _names(path: Path) -> set[str]:
    return set(re.findall(r"BOTPOOL_[A-Z_]+", path.read_text("utf-8")))
