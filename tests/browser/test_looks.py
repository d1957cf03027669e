"""How every page looks: nothing that axe calls serious, and nothing wider than the screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]

from tests.browser.visitor import visiting

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.support.server import Serve

PATHS = ("/", "/bots", "/bots/1", "/slots", "/slots/1", "/hosts", "/insights", "/settings")
KINDS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 900}},
    "dark": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 840}},
}
SHOTS = os.environ.get("BOTPOOL_TEST_SCREENSHOTS")
"""A folder for a picture of each page, for a person's eye."""


@pytest.mark.parametrize("kind", KINDS)
async def test_axe_finds_nothing_serious_and_no_page_is_wider_than_the_screen(
    browser: Browser, serve: Serve, kind: str
) -> None:
    if not (await serve.statuses()):
        await serve.ask(7, stayMs=600_000, joinMs=100)
        await serve.ask(1, behaviour="crash")
    found: dict[str, list[str]] = {}
    async with visiting(browser, serve, reduced_motion="reduce", **KINDS[kind]) as visitor:
        for path in PATHS:
            await visitor.open(path)
            await visitor.live()
            if SHOTS:
                name = path.strip("/").replace("/", "-") or "pool"
                shot = Path(SHOTS) / f"{name}-{kind}.png"
                await visitor.page.screenshot(path=shot, full_page=True)
            result = await Axe().run(visitor.page)
            serious = [
                f"{each['id']}: {[node['html'] for node in each['nodes'][:3]]}"
                for each in result.response["violations"]
                if each["impact"] in {"serious", "critical"}
            ]
            if serious:
                found[path] = serious
            wide = await visitor.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
            assert not wide, path
    assert found == {}
