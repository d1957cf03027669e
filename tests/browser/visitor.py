"""Somebody at a browser, and what they do there."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from playwright.async_api import expect

from tests.support.server import MEET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Locator, Page

    from tests.support.server import Serve

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@dataclass
class Visitor:
    """Somebody at a page. `wrong` has what the console complains of."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")

    async def live(self) -> None:
        """Wait until the page follows the stream."""
        await expect(self.page.locator("#connection")).to_have_text("live")

    async def send(self, url: str = MEET, config: str = "") -> None:
        """Send a bot from the pool's page."""
        if config:
            await self.page.get_by_text("Options", exact=True).click()
            await self.page.get_by_label("Configuration of the bot").fill(config)
        await self.page.get_by_label("Meeting URL").fill(url)
        await self.page.get_by_role("button", name="Send bot").click()

    async def act(self, verb: str, *, within: Locator | None = None) -> None:
        """Press a button that asks first, and confirm."""
        await (within or self.page.locator("main")).get_by_role("button", name=verb).click()
        dialog = self.page.get_by_role("dialog")
        await dialog.get_by_role("button", name=verb).click()
        await expect(dialog).to_be_hidden()


@asynccontextmanager
async def visiting(
    browser: Browser,
    serve: Serve,
    *,
    key: str | None = None,
    url: str | None = None,
    sign_in: bool = True,
    **context: Any,
) -> AsyncIterator[Visitor]:
    """Somebody who signs in with a key, the admin's unless given, by the link for it."""
    base = url or str(serve.client.base_url).rstrip("/")
    surroundings = await browser.new_context(**context)
    page = await surroundings.new_page()
    page.set_default_timeout(30_000)
    visitor = Visitor(page, base)
    page.on("pageerror", lambda error: visitor.wrong.append(str(error)))
    page.on(
        "console",
        lambda said: visitor.wrong.append(said.text) if said.type in {"error", "warning"} else None,
    )
    try:
        if sign_in:
            await page.goto(await sign_in_link(serve, key or serve.key, base))
        yield visitor
        assert not visitor.wrong, visitor.wrong
    finally:
        await surroundings.close()


async def sign_in_link(serve: Serve, key: str, base: str) -> str:
    """A link that signs a browser in with a key, once."""
    answer = await serve.client.post("/api/v1/sessions", headers={"Authorization": f"Bearer {key}"})
    return f"{base}/sign-in?{urlsplit(answer.json()['url']).query}"
