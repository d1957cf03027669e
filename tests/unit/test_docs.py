"""The docs say what the code does, and lead where they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.main import get_command

from botpool.cli.app import app
from botpool.models.attention import NeedKind
from botpool.settings import API_KEY, OLD_NAMES, Settings
from botpool.states import FailureCause
from docs.pages import PAGES
from tests.support.command import run

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
PICTURES = sorted(ROOT.glob("docs/pictures/*.svg"))
TROUBLES = ROOT / "docs" / "how-to" / "troubles.md"
COMMAND = re.compile(r"^(?:.*\$\()?(?:[A-Z_]+=\S+ )*(?:\S*/)?botpool ([a-z][a-z -]*)", re.MULTILINE)
ALERTS = ROOT / "deploy" / "alerts" / "botpool.yml"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path](), "run `make docs`"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere_on_a_code_host(path: Path) -> None:
    text = path.read_text("utf-8")
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    links += [
        (link, "") for link in re.findall(r'(?:src|srcset|href)="(?!https?://)([^"]+)"', text)
    ]
    targets = [(path.parent / link if link else path, anchor) for link, anchor in links]
    assert [
        f"{target}#{anchor}"
        for target, anchor in targets
        if not target.exists() or (anchor and anchor not in _anchors(target))
    ] == []


def _headings(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def _anchors(path: Path) -> set[str]:
    """The anchors that a code host gives to the headings of a page."""
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in _headings(path)]
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in plain}


async def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    code, said, wrong = await run(
        *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"),
        *(
            "-c",
            str(ROOT / "docs"),
            "-d",
            str(tmp_path / "read"),
            str(ROOT),
            str(tmp_path / "site"),
        ),
    )
    assert (code, said, wrong) == (0, "", "")
    site = tmp_path / "site"
    made = {str(path.relative_to(site)) for path in site.glob("**/*.html")}
    pages = {str(path.relative_to(ROOT).with_suffix(".html")) for path in MARKDOWN}
    assert made >= {"index.html", *pages}
    foreign = {
        f"{path.name}: {found}"
        for path in [*site.glob("**/*.html"), *site.glob("**/*.css")]
        for found in re.findall(
            r'<(?:script|link|img|source|iframe)[^>]*(?:src|href|srcset)="((?:https?:)?//[^"]+)'
            r'|(?:url\(|@import )["\']?((?:https?:)?//[^)"\']+)',
            path.read_text("utf-8"),
        )
    }
    assert foreign == set()


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_tells_what_it_shows_and_has_colours_for_a_dark_screen(path: Path) -> None:
    svg = "{http://www.w3.org/2000/svg}"
    root = ET.parse(path).getroot()  # noqa: S314 - our own
    assert root.get("role") == "img"
    for name in ("title", "desc"):
        told = root.find(f"{svg}{name}")
        assert told is not None
        assert told.text
        assert told.get("id") in (root.get("aria-labelledby") or "").split()
    assert "prefers-color-scheme:dark" in path.read_text("utf-8")
    assert path.stat().st_size < 20_000


@pytest.mark.parametrize("name", [*NeedKind, *FailureCause])
def test_whatever_a_page_may_say_has_an_entry_on_what_to_do(name: str) -> None:
    assert name in _headings(TROUBLES)


def test_every_entry_on_what_to_do_is_about_something_that_a_page_may_say() -> None:
    text = TROUBLES.read_text("utf-8")
    entries = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted([*NeedKind, *FailureCause])


def test_every_alert_leads_to_an_entry_on_what_to_do() -> None:
    text = ALERTS.read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)", text)
    books = re.findall(r"runbook_url: (\S+)#(\S+)", text)
    assert alerts
    assert [anchor for _, anchor in books] == [alert.lower() for alert in alerts]
    for (path, _), alert in zip(books, alerts, strict=True):
        assert alert in _headings(ROOT / path)


def test_every_make_target_that_the_docs_name_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for path in MARKDOWN
        for target in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named <= targets


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_the_docs_name_is_there(path: Path) -> None:
    text = path.read_text("utf-8")
    code = [*re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    code += re.findall(r"`([^`\n]+)`", text)
    named = COMMAND.findall("\n".join(code))
    assert [words for words in named if not _is_command(words.split())] == []


def _is_command(words: list[str]) -> bool:
    """Whether words begin with a command; after a group comes one of its own, or nothing."""
    found: Any = get_command(app)
    for word in words:
        commands = getattr(found, "commands", None)
        if commands is None or word.startswith("-"):
            return True
        if word not in commands:
            return False
        found = commands[word]
    return True


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_the_docs_name_is_there(path: Path) -> None:
    old = OLD_NAMES.values() if path.name in {"CHANGELOG.md", "settings.md"} else ()
    known = {f"BOTPOOL_{name.upper()}" for name in (*Settings.model_fields, *old)}
    given = {"BOTPOOL_URL", "BOTPOOL_SLOT_TOKEN", API_KEY}  # to containers and to commands
    tests = {name for name in _names(path) if name.startswith("BOTPOOL_TEST_")}
    assert _names(path) - known - given - tests == set()


def _names(path: Path) -> set[str]:
    return set(re.findall(r"BOTPOOL_[A-Z_]+", path.read_text("utf-8")))
