"""The dashboard below a path of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.visitor import visiting
from tests.support.server import served

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

PREFIX = "/our/botpool"


async def test_a_page_below_a_path_is_live_and_sends_bots(browser: Browser, tmp_path: Path) -> None:
    async with served(tmp_path, "--stop-bots", path_prefix=PREFIX, leave_grace_ms="500") as serve:
        url = f"{str(serve.client.base_url).rstrip('/')}{PREFIX}"
        async with visiting(browser, serve, url=url) as visitor:
            await visitor.live()
            await visitor.send(config='{"sample": {"stayMs": 3600000}}')
            await expect(visitor.page.locator("#said")).to_contain_text("is on its way")
            tile = visitor.page.locator("a.tile.busy")
            await expect(tile).to_be_visible()
            await tile.click()
            await expect(visitor.page).to_have_url(f"{url}/bots/1")
            await visitor.live()
            await visitor.act("Stop")
            await expect(visitor.page.get_by_text("Done, after")).to_be_visible()
            await visitor.page.get_by_role("button", name="Sign out").click()
            await expect(visitor.page).to_have_url(f"{url}/")
            await expect(visitor.page.get_by_text("You are not signed in")).to_be_visible()
            visitor.wrong.clear()  # the page without a session is answered with 401
        await serve.ends()
