"""botpool below a path of a host: behind proxies that take the path away, and behind others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.access.sessions import Sessions
from botpool.api import create_app
from botpool.dashboard import add_dashboard
from botpool.errors import SettingsInvalid
from botpool.pool import Pool
from botpool.settings import Settings, load_settings
from botpool.states import Role
from botpool.store import Store
from tests.support.scene import add_host, new_bot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.store import Database

PREFIX = "/our/botpool"
PAGES = ("/", "/bots", "/bots/1", "/slots", "/slots/1", "/hosts", "/insights", "/settings")
# One proxy passes the whole path on, another one takes the prefix away.
PROXIES = pytest.mark.parametrize("passed", [PREFIX, ""], ids=["passed", "taken"])


@pytest.fixture
async def browser(database: Database, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who has signed in at a botpool below a path, which has one bot."""
    store = Store(database)
    settings = Settings(data_dir=tmp_path, path_prefix=f"{PREFIX}/", max_pool_size=3)
    keys, pool = Keys(store, settings), Pool(store, settings)
    await pool.queue.configure()
    await add_host(pool)
    text = f'a "quoted" href="{PREFIX}"'
    await pool.creation.create_bot(new_bot(bot_display_name=text))
    key, _ = await keys.create("me", Role.ADMIN)
    app = create_app(store, pool, settings, keys)
    add_dashboard(app)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://host.example"
    ) as browser:
        link = (await Sessions(store).invite(key)).link(f"https://host.example{PREFIX}")
        answer = await browser.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}/")
        yield browser


@PROXIES
async def test_every_link_and_form_of_a_page_is_below_the_path(
    browser: httpx.AsyncClient, passed: str
) -> None:
    for path in PAGES:
        # What a proxy has taken away, the browser has asked for: so the cookie is sent.
        cookie = {"cookie": f"botpool={browser.cookies['botpool']}"}
        answer = await browser.get(f"{passed}{path}", headers=cookie)
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
        found = re.findall(
            r'(?:href|src|action|formaction|data-logs|data-here)="(/[^"]*)', answer.text
        )
        assert found
        assert [each for each in found if not each.startswith(f"{PREFIX}/")] == []
        assert f"{PREFIX}{PREFIX}" not in answer.text


async def test_a_session_is_of_that_path_and_no_other(browser: httpx.AsyncClient) -> None:
    (cookie,) = browser.cookies.jar
    assert (cookie.name, cookie.path) == ("botpool", PREFIX)
    assert (await browser.get("/other/")).status_code == 404
    answer = await browser.get(PREFIX)
    assert answer.status_code == 200
    assert "Pool · botpool" in answer.text
    ours = {"x-botpool": "1"}
    answer = await browser.post(f"{PREFIX}/pools/zoom/pause", headers=ours)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}/")
    answer = await browser.post(f"{PREFIX}/sign-out", headers=ours)
    assert answer.headers["location"] == f"{PREFIX}/"
    assert "botpool" not in browser.cookies


@PROXIES
async def test_callers_use_the_api_and_its_document_there(
    browser: httpx.AsyncClient, passed: str
) -> None:
    api = f"{passed}/api/v1"
    cookie = {"cookie": f"botpool={browser.cookies['botpool']}", "x-botpool": "1"}
    document = (await browser.get(f"{passed}/openapi.json")).json()
    assert document["servers"] == [{"url": PREFIX}]
    assert "/api/v1/bots" in document["paths"]
    made = await browser.post(f"{api}/keys", json={"name": "it", "role": "viewer"}, headers=cookie)
    browser.cookies.clear()
    bearer = {"authorization": f"Bearer {made.json()['secret']}"}
    link = (await browser.post(f"{api}/sessions", headers=bearer)).json()["url"]
    assert link.startswith(f"https://host.example{PREFIX}/sign-in?code=")
    assert (await browser.get(f"{passed}/healthz")).json() == {"status": "ok"}
    for file in ("docs", "docs/start.js", "docs/assets/swagger-ui.css"):
        assert (await browser.get(f"{passed}/{file}")).status_code == 200


async def test_a_created_bot_is_found_where_the_answer_says(browser: httpx.AsyncClient) -> None:
    body = {"meetingUrl": "https://meet.google.com/abc-defg-hij"}
    created = await browser.post(f"{PREFIX}/api/v1/bots", json=body, headers={"x-botpool": "1"})
    assert created.headers["location"] == f"{PREFIX}/api/v1/bots/2"
    assert (await browser.get(created.headers["location"])).json()["id"] == 2


@pytest.mark.parametrize("text", ["botpool", "//elsewhere", "/a b", "/a/../b", "https://host/a"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid, match="BOTPOOL_PATH_PREFIX: must be a path"):
        load_settings(path_prefix=text)
