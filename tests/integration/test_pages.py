"""The pages for browsers: whole by themselves, closed to what comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.access.projects import Projects
from botpool.api import create_app
from botpool.dashboard import add_dashboard
from botpool.dashboard.bots import _value
from botpool.feed.stream import Feed, Filter
from botpool.models.bots import BotSearch
from botpool.models.diagnoses import Finding, Result
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, Platform, Role
from botpool.store import Store
from tests.support.scene import add_host, new_bot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.models.bots import BotSort
    from botpool.store import Database

PATHS = ("/", "/bots", "/bots/1", "/slots", "/slots/1", "/hosts", "/insights", "/settings")
EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
async def keys(store: Store, tmp_path: Path) -> Keys:
    return Keys(store, Settings(data_dir=tmp_path))


@pytest.fixture
async def http(store: Store, keys: Keys) -> AsyncIterator[httpx.AsyncClient]:
    """A caller with the admin's key, for whom there is a bot with an evil name."""
    settings = Settings(max_pool_size=3)
    pool = Pool(store, settings)
    await pool.queue.configure()
    await add_host(pool)
    await pool.creation.create_bot(new_bot(bot_display_name=EVIL, metadata={"note": EVIL}))
    app = create_app(store, pool, settings, keys)
    add_dashboard(app)
    transport = httpx.ASGITransport(app)
    _, key = await keys.create("me", Role.ADMIN)
    async with httpx.AsyncClient(
        transport=transport,
        base_url="http://botpool",
        headers={"Authorization": f"Bearer {key}"},
    ) as client:
        yield client


async def test_the_history_of_a_slot_says_whose_bot_it_was(http: httpx.AsyncClient) -> None:
    page = (await http.get("/slots/1")).text
    history = page[page.index('id="history-name"') : page.index('id="facts-name"')]
    assert "is deploying" in history
    assert '<a href="/bots/1">bot 1</a>' in history


@pytest.mark.parametrize("path", [*PATHS, "/docs", "/bots/99"])
async def test_a_page_names_all_that_it_may_load_and_nothing_of_elsewhere(
    http: httpx.AsyncClient, path: str
) -> None:
    page = await http.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    sources = {source for allowed in policy.values() for source in allowed.split()}
    hashes = {source for source in sources if source.startswith("'sha256-")}
    assert sources - hashes <= {"'none'", "'self'", "data:"}
    assert "data:" not in policy["script-src"]
    for kind in ("script", "style"):
        for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[f"{kind}-src"]
    # The policy forbids both, so they would not work.
    assert not re.search(r"<[^>]+\s(?:style|on\w+)=", page.text)


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_loads_only_what_is_there_and_lets_nobody_s_words_be_code(
    http: httpx.AsyncClient, path: str
) -> None:
    page = await http.get(path)
    assert page.status_code == 200
    assert EVIL not in page.text
    loaded = re.findall(r'<(?:link|script)[^>]+(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 3
    for name in loaded:
        answer = await http.get(name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        for other in re.findall(r'from "(\./[\w.]+)"', answer.text):
            assert (await http.get(urljoin(name, other))).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_our_script_gets_the_part_that_can_change_without_the_frame(
    http: httpx.AsyncClient, path: str
) -> None:
    whole = await http.get(path)
    part = await http.get(path, headers={"X-Botpool-Part": "1"})
    live = set(re.findall(r'<\w+[^>]*\sid="([\w-]+)"[^>]*data-live', whole.text))
    assert live
    assert live == set(re.findall(r'<\w+[^>]*\sid="([\w-]+)"[^>]*data-live', part.text))
    assert '<nav aria-label="Pages"' not in part.text


async def test_whoever_is_not_signed_in_is_told_how_to_and_sees_nothing(
    http: httpx.AsyncClient,
) -> None:
    for path in PATHS:
        page = await http.get(path, headers={"Authorization": ""})
        assert page.status_code == 401
        assert "botpool sign-in" in page.text
        assert "Notes" not in page.text


async def test_a_viewer_sees_every_page_and_no_form_that_changes_anything(
    http: httpx.AsyncClient, keys: Keys
) -> None:
    _, key = await keys.create("looks", Role.VIEWER)
    for path in PATHS:
        page = await http.get(path, headers={"Authorization": f"Bearer {key}"})
        assert page.status_code == 200
        forms = re.findall(
            r'<form method="post" action="([^"]+)"[^>]*>(.*?)</form>', page.text, re.DOTALL
        )
        acts = [action for action, content in forms if "<button" in content]
        assert acts == ["/sign-out"], path


async def test_what_is_not_there_or_not_to_be_done_is_told_on_a_page(
    http: httpx.AsyncClient, keys: Keys
) -> None:
    _, key = await keys.create("a program", Role.CLIENT)
    client = {"Authorization": f"Bearer {key}"}
    for status, page in (
        (404, await http.get("/bots/99")),
        (404, await http.get("/slots/99")),
        (403, await http.get("/settings", headers=client)),
        (422, await http.get("/bots", params={"sort": "shoe size"})),
        (409, await http.post("/slots/1/delete")),
        (422, await http.post("/bots/stop")),
        (422, await http.post("/bots", content="meetingUrl=https://meet.example/a")),
    ):
        assert page.status_code == status
        assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_a_form_sends_as_many_bots_as_it_asks_for_or_none(
    http: httpx.AsyncClient, store: Store
) -> None:
    meet, zoom = "https://meet.google.com/abc-defg-hij", "https://zoom.us/j/123456789"
    bad = await http.post("/bots", data={"meetingUrl": f"{meet} https://meet.example/a"})
    assert "https://meet.example/a: meetingUrl is not a meeting link" in bad.text
    assert f"{meet} https://meet.example/a</textarea>" in bad.text
    assert len(await store.bots.search(BotSearch())) == 1
    data = {"meetingUrl": f"{meet}\n{zoom}", "count": "2", "name": "Minutes", "priority": "7"}
    answer = await http.post("/bots", data={**data, "config": '{"sample": {"stayMs": 1}}'})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    sent = await store.bots.search(BotSearch(text="Minutes"))
    assert sorted(bot.platform for bot in sent) == [Platform.GOOGLE_MEET] * 2 + [Platform.ZOOM] * 2
    assert {(bot.priority, str(bot.config)) for bot in sent} == {(7, "{'sample': {'stayMs': 1}}")}
    again = await http.post(f"/bots/{sent[0].id}/again")
    assert again.status_code == 303
    assert len(await store.bots.search(BotSearch(text="Minutes"))) == 5


async def test_a_form_sends_bots_of_the_project_that_is_chosen_and_again_of_the_same(
    http: httpx.AsyncClient, store: Store
) -> None:
    meet = "https://meet.google.com/abc-defg-hij"
    assert '<select name="project">' not in (await http.get("/")).text
    project, _ = await Projects(store).create("Sales")
    assert f'<option value="{project.id}">Sales</option>' in (await http.get("/")).text
    for data, wanted in (({}, 1), ({"project": str(project.id)}, project.id)):
        await http.post("/bots", data={"meetingUrl": meet, **data})
        (sent,) = await store.bots.search(BotSearch(limit=1))
        assert sent.project_id == wanted
    await http.post(f"/bots/{sent.id}/again")
    (again,) = await store.bots.search(BotSearch(limit=1))
    assert (again.id, again.project_id) == (sent.id + 1, project.id)
    wrong = await http.post("/bots", data={"meetingUrl": "?", "project": str(project.id)})
    assert f'<option value="{project.id}" selected>Sales</option>' in wrong.text


async def test_a_client_sends_bots_of_its_project_from_its_list(
    http: httpx.AsyncClient, store: Store, keys: Keys
) -> None:
    project, _ = await Projects(store).create("Sales")
    _, key = await keys.create("a program", Role.CLIENT, project.id)
    client = {"Authorization": f"Bearer {key}"}
    assert '<textarea id="meeting-url"' in (await http.get("/bots", headers=client)).text
    assert '<textarea id="meeting-url"' not in (await http.get("/bots")).text
    wrong = await http.post("/bots", data={"meetingUrl": "https://meet.example/a"}, headers=client)
    assert wrong.status_code == 422
    assert "https://meet.example/a</textarea>" in wrong.text
    meet = {"meetingUrl": "https://meet.google.com/abc-defg-hij"}
    assert (await http.post("/bots", data=meet, headers=client)).status_code == 303
    (sent,) = await store.bots.search(BotSearch(limit=1))
    assert sent.project_id == project.id


async def test_the_more_pages_are_open_the_less_often_each_asks(
    http: httpx.AsyncClient, store: Store
) -> None:
    feed = Feed(store)
    http._transport.app.state.feed = feed  # type: ignore[attr-defined]
    pauses = []
    for _ in range(2):
        part = await http.get("/", headers={"X-Botpool-Part": "1"})
        pauses.append(int(part.headers["x-botpool-pause"]))
        for _ in range(50):
            await feed.subscribe(None, Filter())
    assert pauses == [0, 2000]


async def test_settings_show_what_doctor_found_and_have_it_look_again(
    http: httpx.AsyncClient, store: Store
) -> None:
    assert "has not looked yet" in (await http.get("/settings")).text
    assert (await http.post("/settings/doctor/check")).status_code == 303
    asked = (await http.get("/settings")).text
    assert "a worker checks soon" in asked
    assert "Check now" not in asked
    await store.diagnoses.take("one", 1000, 1000)
    away = Finding(
        check="database", engine=None, result=Result.PROBLEM, found=EVIL, mend="Start it."
    )
    await store.diagnoses.record("one", [away])
    page = (await http.get("/settings")).text
    assert "1 problem in 1 check" in page
    assert "Start it." in page
    assert "Check now" in page
    assert EVIL not in page


async def test_people_find_bots_by_what_they_know_of_them(
    http: httpx.AsyncClient, store: Store
) -> None:
    pool = Pool(store, Settings())
    for n, name in enumerate(["Zoe", "anna", "100%", "Anna", "zed"]):
        await pool.creation.create_bot(
            new_bot([*Platform][n % 3], bot_display_name=name, deduplication_key=f"event-{n}")
        )

    async def names(search: BotSearch) -> list[str]:
        return [found.bot_display_name for found in await store.bots.search(search)]

    assert await names(BotSearch(text="ANNA")) == ["Anna", "anna"]
    assert await names(BotSearch(text="0%")) == ["100%"]
    assert await names(BotSearch(text="event-4")) == ["zed"]
    assert await names(BotSearch(text="2", platform=Platform.GOOGLE_MEET)) == ["Zoe"]
    assert len(await names(BotSearch(statuses=[BotStatus.QUEUED]))) == 0
    assert await names(BotSearch(project_id=99)) == []
    by_name = BotSearch(sort="name", descending=False)
    assert await names(by_name) == ["100%", EVIL, "anna", "Anna", "zed", "Zoe"]
    # Page by page it is the same, whatever it is ordered by.
    sorts: tuple[BotSort, ...] = ("created", "name", "platform", "status", "slot")
    for sort in sorts:
        for down in (False, True):
            page = await http.get("/bots", params={"sort": f"{'-' * down}{sort}"})
            assert page.status_code == 200
            search = BotSearch(sort=sort, descending=down)
            whole, found = await store.bots.search(search), []
            while part := await store.bots.search(replace(search, limit=2)):
                found += part
                last = part[-1]
                search = replace(search, after_id=last.id, after_value=_value(last, sort))
            assert found == whole


async def test_the_docs_are_made_of_what_we_serve(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 4
    for name in loaded:
        assert "//" not in name
        answer = await http.get(urljoin("http://botpool/docs", name))
        assert answer.status_code == 200
        assert answer.content
    start = (await http.get("/docs/start.js")).text
    (document,) = re.findall(r'url: "([^"]+)"', start)
    described = await http.get(urljoin("http://botpool/docs", document))
    assert "/api/v1/bots" in described.json()["paths"]


async def test_what_the_docs_don_t_have_is_a_problem(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs/assets/nothing.js")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
