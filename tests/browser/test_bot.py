"""A bot as a person sees it: sent, watched on its way, read, and stopped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.visitor import visiting
from tests.support.server import MEET

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.browser.visitor import Visitor
    from tests.support.server import Serve

STAYS = '{"sample": {"stayMs": 600000, "joinMs": 300}}'

# Notes what a tile is called, whenever that changes.
WATCH = """() => {
    window.stayed = true;
    window.seen = [];
    new MutationObserver(() => {
        const tile = document.querySelector(".tile");
        const name = tile && tile.getAttribute("aria-label");
        if (name && window.seen.at(-1) !== name) window.seen.push(name);
    }).observe(document.body, {subtree: true, childList: true, attributes: true});
}"""


async def test_a_bot_is_sent_and_its_tile_goes_through_its_states_without_a_reload(
    visitor: Visitor, serve: Serve
) -> None:
    page = visitor.page
    await visitor.live()
    await page.evaluate(WATCH)
    field = page.get_by_label("Meeting URL")
    await field.fill("https://meet.example/abc")
    await expect(page.locator("#recognised")).to_have_text("not recognised")
    await field.fill("https://zoom.us/j/123456789")
    await expect(page.locator("#recognised")).to_have_text("Zoom")
    await visitor.send(config=STAYS)
    await expect(page.locator("#said")).to_have_text(
        "Bot 1 is on its way, on pool-google-meet-001."
    )
    await expect(page.get_by_role("link", name="pool-google-meet-001, busy, bot 1")).to_be_visible()
    await serve.client.post("/api/v1/bots/1/stop")
    await expect(page.get_by_role("link", name="pool-google-meet-001, idle")).to_be_visible()
    seen = await page.evaluate("window.seen")
    slot = "pool-google-meet-001"
    wanted = [f"{slot}, deploying, bot 1", f"{slot}, busy, bot 1", f"{slot}, idle"]
    assert [name for name in seen if name in wanted] == wanted
    assert await page.evaluate("window.stayed")


async def test_a_bot_page_tells_its_launch_follows_its_logs_and_stops_it(
    visitor: Visitor, serve: Serve
) -> None:
    page = visitor.page
    (created,) = await serve.ask(stayMs=600_000, joinMs=300)
    bot = created["bot"]["id"]
    await visitor.open(f"/bots/{bot}")
    await expect(page.get_by_role("status")).to_contain_text("In call for")
    phases = page.get_by_role("list", name="Phases of the launch").get_by_role("listitem")
    await expect(phases).to_have_count(7)
    await expect(phases.nth(0)).to_contain_text("queued")
    await expect(page.locator(".sentence")).to_contain_text("In its call after")
    logs = page.get_by_role("log", name="Log lines")
    await expect(logs).to_contain_text("IN_CALL")
    await page.get_by_label("Search the logs").fill("WAITING")
    await expect(logs).not_to_contain_text("JOINING_CALL")
    await expect(logs).to_contain_text("IN_WAITING_ROOM")
    assert page.url.endswith(f"/bots/{bot}?q=WAITING")
    await page.get_by_label("Search the logs").fill("")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#logs-state")).to_contain_text("paused")
    await page.get_by_role("button", name="Go on").click()

    await visitor.act("Stop")
    await expect(page.get_by_role("status")).to_contain_text("Done")
    await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    await expect(page.locator("#logs-state")).to_contain_text("complete")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download").click()
    assert "IN_CALL" in (await (await download.value).path()).read_text()


async def test_the_keyboard_alone_sends_and_stops_a_bot(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.live()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(20):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.id") == "meeting-url":
            break
    await page.keyboard.type(MEET)
    await page.keyboard.press("Enter")
    said = page.locator("#said")
    await expect(said).to_have_text(re.compile(r"Bot \d+ is on its way"))
    bot = re.findall(r"\d+", await said.inner_text())[0]
    tile = page.get_by_role("link", name=re.compile(rf", bot {bot}$"))
    await tile.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name=f"Bot {bot}")).to_be_visible()
    await page.get_by_role("button", name="Stop").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Stop")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text(re.compile("Cancelled|Leaves|Done"))


async def test_without_javascript_a_bot_is_sent_looked_at_and_stopped(
    browser: Browser, serve: Serve
) -> None:
    async with visiting(browser, serve, java_script_enabled=False) as visitor:
        page = visitor.page
        await visitor.send(config=STAYS)
        await expect(page.locator("#said")).to_have_text(re.compile(r"Bot \d+ is on its way"))
        bot = re.findall(r"\d+", await page.locator("#said").inner_text())[0]
        await visitor.open(f"/bots/{bot}")
        await page.locator("main").get_by_role("button", name="Stop").click()
        await expect(page.locator("#said")).to_have_text(f"Bot {bot} is told to stop.")
        await visitor.open("/")
        await page.get_by_label("Meeting URL").fill("https://meet.example/abc")
        await page.get_by_role("button", name="Send bot").click()
        await expect(page.locator("#send-error")).to_contain_text("is not a meeting link")
        await expect(page.get_by_label("Meeting URL")).to_have_value("https://meet.example/abc")
        visitor.wrong.clear()  # the browser notes the 422 itself
