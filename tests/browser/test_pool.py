"""The pool as a person sees it: its queue, many bots at once, its hosts, and a cut connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.line import line_to
from tests.browser.visitor import visiting
from tests.support.server import MEET

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.browser.visitor import Visitor
    from tests.support.server import Serve


async def test_the_queue_fills_and_empties_as_bots_are_stopped_together(
    visitor: Visitor, serve: Serve
) -> None:
    page = visitor.page
    await visitor.live()
    await visitor.send(" ".join([MEET] * 6), '{"sample": {"stayMs": 600000, "joinMs": 100}}')
    await expect(page.locator("#said")).to_contain_text("6 bots are on their way")
    queue = page.locator("#queue tbody tr")
    await expect(queue).to_have_count(2)
    await expect(queue.first).to_contain_text("Google Meet")
    used = page.locator("#platform-google-meet .head")
    await expect(used).to_contain_text("4 / 4")

    await page.get_by_role("link", name="Bots", exact=True).click()
    await expect(page.get_by_role("checkbox", name="Select bot")).to_have_count(6)
    await page.get_by_label("Status").select_option("in-call")
    await expect(page.get_by_role("checkbox", name="Select bot")).to_have_count(4)
    assert "status=in-call" in page.url
    await page.get_by_role("checkbox", name="Select all").check()
    await visitor.act("Stop")
    await expect(page.locator("#said")).to_have_text("4 bots told to stop.")
    await page.get_by_role("link", name="Pool", exact=True).click()
    await expect(page.locator("#queue")).to_contain_text("Nobody waits.")
    await expect(used).to_contain_text("2 busy")
    await page.get_by_role("link", name="Bots", exact=True).click()
    await page.get_by_label("Status").select_option("live")
    await expect(page.get_by_role("checkbox", name="Select bot")).to_have_count(2)
    await page.get_by_role("checkbox", name="Select all").check()
    await visitor.act("Stop")
    await expect(page.get_by_role("heading", name="No bot matches")).to_be_visible()


async def test_a_host_is_drained_and_undrained(visitor: Visitor, serve: Serve) -> None:
    page = visitor.page
    await visitor.open("/hosts")
    await visitor.act("Drain")
    await expect(page.locator(".state")).to_contain_text("it gets no new work")
    (host,) = (await serve.client.get("/api/v1/hosts")).json()["hosts"]
    assert host["drainedAt"] is not None
    await page.get_by_role("button", name="Undrain").click()
    await expect(page.locator(".state")).to_have_text("Healthy")


async def test_new_launches_of_a_platform_are_paused_and_resumed(
    visitor: Visitor, serve: Serve
) -> None:
    page = visitor.page
    zoom = page.locator("#platform-zoom")
    await visitor.act("Pause", within=zoom)
    await expect(zoom).to_contain_text("paused")
    await visitor.send("https://zoom.us/j/123456789", '{"sample": {"stayMs": 100}}')
    await expect(page.locator("#queue tbody tr")).to_have_count(1)
    await zoom.get_by_role("button", name="Resume").click()
    await expect(page.locator("#queue")).to_contain_text("Nobody waits.")


async def test_a_cut_connection_is_shown_and_mended_and_the_page_is_right_again(
    browser: Browser, serve: Serve
) -> None:
    async with line_to(str(serve.client.base_url).rstrip("/")) as line:
        async with visiting(browser, serve, url=line.url) as visitor:
            page = visitor.page
            await visitor.live()
            await page.evaluate("window.stayed = true")
            line.cut()
            await expect(page.locator("#cut")).to_be_visible()
            await expect(page.locator("#connection")).to_have_text("reconnecting")
            (created,) = await serve.ask(stayMs=600_000, joinMs=100)
            bot = created["bot"]
            await serve.client.post("/api/v1/pools/zoom/pause")
            line.mend()
            await visitor.live()
            await expect(page.locator("#cut")).to_be_hidden()
            name = f"{bot['slotName']}, busy, bot {bot['id']}"
            await expect(page.get_by_role("link", name=name)).to_be_visible()
            await expect(page.locator("#platform-zoom")).to_contain_text("paused")
            assert await page.evaluate("window.stayed")
            # What the browser says of a request that it could not make is no fault of the page.
            visitor.wrong[:] = [said for said in visitor.wrong if "Failed to load" not in said]
        await serve.client.post("/api/v1/pools/zoom/resume")
        await serve.client.post(f"/api/v1/bots/{bot['id']}/stop")
