"""Who sees what: a visitor who is not signed in, a viewer, a client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.browser.visitor import sign_in_link, visiting

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.browser.visitor import Visitor
    from tests.support.server import Serve

PAGES = ("Pool", "Bots", "Slots", "Hosts", "Insights", "Settings")


async def _key(serve: Serve, role: str) -> str:
    answer = await serve.client.post("/api/v1/keys", json={"name": f"a {role}", "role": role})
    secret: str = answer.json()["secret"]
    return secret


async def test_a_visitor_who_is_not_signed_in_is_told_how_to(
    browser: Browser, serve: Serve
) -> None:
    async with visiting(browser, serve, sign_in=False) as visitor:
        answer = await visitor.page.goto(visitor.url)
        assert answer is not None
        assert answer.status == 401
        await expect(visitor.page.get_by_role("heading")).to_have_text("You are not signed in")
        await expect(visitor.page.get_by_text("botpool sign-in")).to_be_visible()
        visitor.wrong.clear()  # the browser notes the 401 itself


async def test_after_signing_out_no_page_is_shown(visitor: Visitor) -> None:
    await visitor.page.get_by_role("button", name="Sign out").click()
    await expect(visitor.page.get_by_role("heading")).to_have_text("You are not signed in")
    visitor.wrong.clear()  # the browser notes the 401 itself


async def test_a_viewer_sees_all_and_changes_nothing(browser: Browser, serve: Serve) -> None:
    (created,) = await serve.ask(stayMs=600_000)
    bot = created["bot"]["id"]
    async with visiting(browser, serve, key=await _key(serve, "viewer")) as visitor:
        page = visitor.page
        for name in PAGES:
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", name=name, level=1)).to_have_count(1)
            assert await page.locator("main form[method=post] button").count() == 0, name
        await visitor.open(f"/bots/{bot}")
        assert await page.locator("main form[method=post] button").count() == 0
        status = await page.evaluate(
            "path => fetch(path, {method: 'POST'}).then(answer => answer.status)",
            f"/bots/{bot}/stop",
        )
        assert status == 403
        visitor.wrong.clear()  # the browser notes the 403 itself
    assert (await serve.client.get(f"/api/v1/bots/{bot}")).json()["endedAt"] is None


async def test_a_client_sees_its_own_bots_and_is_told_that_the_rest_is_not_for_it(
    browser: Browser, serve: Serve
) -> None:
    async with visiting(browser, serve, key=await _key(serve, "client")) as visitor:
        page = visitor.page
        await expect(page.get_by_role("heading", name="Bots", level=1)).to_be_visible()
        await expect(
            page.get_by_role("navigation", name="Pages").get_by_role("link")
        ).to_have_count(1)
        answer = await page.goto(f"{visitor.url}/settings")
        assert answer is not None
        assert answer.status == 403
        visitor.wrong.clear()  # the browser notes the 403 itself


async def test_a_key_is_made_rotated_and_revoked(visitor: Visitor, serve: Serve) -> None:
    page = visitor.page
    await visitor.open("/settings")
    await page.get_by_text("Make a key").click()
    await page.get_by_label("What it is for").fill("calendar")
    await page.get_by_role("button", name="Make key").click()
    first = await page.locator(".secret").inner_text()
    assert await _opens(serve, first)
    row = page.locator("#keys tbody tr", has_text="calendar")
    await visitor.act("Rotate", within=row.first)
    await expect(page.locator(".secret")).not_to_have_text(first)
    second = await page.locator(".secret").inner_text()
    assert await _opens(serve, second)
    await visitor.act("Revoke", within=row.last)
    await expect(page.locator("#said")).to_have_text("The key calendar is revoked.")
    assert not await _opens(serve, second)


async def _opens(serve: Serve, key: str) -> bool:
    answer = await serve.client.get("/api/v1/bots", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code == 200


@pytest.mark.parametrize("path", ["/", "/bots", "/settings"])
async def test_a_form_of_another_site_does_nothing(serve: Serve, path: str) -> None:
    link = await sign_in_link(serve, serve.key, str(serve.client.base_url).rstrip("/"))
    cookie = (await serve.client.get(link)).cookies["botpool"]
    serve.client.cookies.clear()
    answer = await serve.client.post(
        "/bots",
        content="meetingUrl=https://meet.google.com/abc-defg-hij",
        headers={
            "Authorization": "",
            "Cookie": f"botpool={cookie}",
            "Origin": "https://elsewhere.example",
            "Referer": f"https://elsewhere.example{path}",
        },
    )
    assert answer.status_code == 403


async def test_doctor_looks_when_asked_and_the_page_shows_what_it_found(visitor: Visitor) -> None:
    await visitor.open("/settings")
    await visitor.live()
    doctor = visitor.page.get_by_role("region", name="Doctor")
    await doctor.get_by_role("button", name="Check now").click()
    await expect(doctor).to_contain_text(re.compile(r"\d+ checks?(, all well)?, 0:\d\d ago"))
    await expect(doctor.get_by_text("that are well")).to_be_visible()
