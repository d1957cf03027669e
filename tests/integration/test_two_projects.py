"""Two projects on one botpool: neither sees or changes anything of the other, by any call."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.access.projects import Projects
from botpool.api import create_app
from botpool.feed.endpoints import Endpoints
from botpool.feed.stream import Feed
from botpool.models.webhooks import DeliveryPage
from botpool.states import BotStatus, Role
from tests.support.receiver import new_post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.receiver import Post

# What only the other project has in its texts.
THEIRS = "of-the-other-project"
MEET = "https://meet.google.com/abc-defg-hij"
# What belongs to no project.
NO_PROJECTS = {
    "engine": "process",
    "host": "here",
    "containerRef": "here",
    "platform": "google-meet",
}


@dataclass(frozen=True)
class Two:
    """The clients of two projects, an admin, a viewer, and what the second project has."""

    post: Post
    mine: httpx.AsyncClient
    admin: httpx.AsyncClient
    viewer: httpx.AsyncClient
    my_project: int
    their_project: int
    ids: dict[str, int]
    bot: Bot
    their_key: str
    keys: Keys


@pytest.fixture
async def two(database: Database) -> AsyncIterator[Two]:
    async with new_post(database) as post, AsyncExitStack() as stack:
        store, settings = post.store, post.settings
        keys = Keys(store, settings)
        app = create_app(store, post.pool, settings, keys, Feed(store))

        async def client(key: str) -> httpx.AsyncClient:
            return await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app),
                    base_url="http://botpool",
                    headers={"Authorization": f"Bearer {key}"},
                )
            )

        mine, _ = await Projects(store).create("mine")
        theirs, _ = await Projects(store).create(THEIRS)
        _, my_key = await keys.create("mine", Role.CLIENT, mine.id)
        key, their_key = await keys.create(THEIRS, Role.CLIENT, theirs.id)
        endpoint, _ = await Endpoints(store, settings).create(theirs.id, post.url(f"/{THEIRS}"))
        await Endpoints(store, settings).create(mine.id, post.url("/mine"))
        bot = await post.told(
            f"/{THEIRS}/callback",
            project_id=theirs.id,
            meeting_url=f"{MEET}?{THEIRS}",
            metadata={THEIRS: THEIRS},
            bot_display_name=THEIRS,
            correlation_id=THEIRS,
            deduplication_key=THEIRS,
            idempotency_key="same",
            request_digest=b"d",
        )
        await post.advance(bot, BotStatus.IN_CALL)
        slot = await post.slot_of(bot.id)
        await post.pool.assignments.add_events(slot.id, slot.lease, [(THEIRS, {})])
        await post.pool.assignments.add_log_lines(slot.id, slot.lease, [("info", THEIRS)])
        await post.webhooks.run_once()
        delivery, *_ = await store.webhooks.deliveries(bot.id)
        yield Two(
            post,
            await client(my_key),
            await client((await keys.create("admin", Role.ADMIN))[1]),
            await client((await keys.create("viewer", Role.VIEWER))[1]),
            mine.id,
            theirs.id,
            {
                "bot_id": bot.id,
                "project_id": theirs.id,
                "key_id": key.id,
                "webhook_id": endpoint.id,
                "delivery_id": delivery.id,
                "slot_id": slot.id,
                # Nobody has signed in with the other project's key.
                "session_id": 1,
            },
            bot,
            their_key,
            keys,
        )


# What the OpenAPI document allows


def calls(document: dict[str, Any], ids: dict[str, int]) -> Iterator[tuple[str, str, Any]]:
    """Every call of the document, about what has these ids: its method, its path, its body."""
    for path, operations in document["paths"].items():
        if path.startswith("/api/v1/runtime/") or path == "/api/v1/stream":
            continue  # one has a slot's token; the other has no end, and test_stream_api.py
        for method, operation in operations.items():
            named = {
                parameter["name"]
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "path"
            }
            # Whoever adds a call with another id says here what has it in the other project.
            unknown = {name for name in named if snake(name) not in ids} - NO_PROJECTS.keys()
            assert not unknown, f"unknown ids: {unknown}, {path}"
            given = {name: ids.get(snake(name)) or NO_PROJECTS[name] for name in named}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            yield (
                method.upper(),
                path.format(**given),
                None if body is None else sample(body["schema"], document, ids),
            )
            for parameter in operation.get("parameters", ()):
                name = snake(parameter["name"])
                if parameter["in"] == "query" and name in ids:
                    query = f"{path.format(**given)}?{parameter['name']}={ids[name]}"
                    yield method.upper(), query, None


def sample(schema: dict[str, Any], document: dict[str, Any], ids: dict[str, int]) -> Any:
    """A body that fits a schema, and names what has these ids wherever it can."""
    if "anyOf" in schema:
        (first, *_) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return sample(first, document, ids)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return sample(document["components"]["schemas"][name], document, ids)
    kind = schema.get("type")
    if kind == "object":
        return sample_object(schema, document, ids)
    if kind == "array":
        return [sample(schema["items"], document, ids)]
    text = "2020-01-01T00:00:00Z" if schema.get("format") == "date-time" else "text"
    return {"string": text, "integer": 1}.get(str(kind), {})


def sample_object(schema: dict[str, Any], document: dict[str, Any], ids: dict[str, int]) -> Any:
    known = {**ids, "ids": [ids["bot_id"]], "url": "https://hooks.example.com/mine"}
    body = dict(schema.get("examples", [{}])[0])
    for name, inner in schema.get("properties", {}).items():
        if snake(name) in known:
            body[name] = known[snake(name)]
        elif name in schema.get("required", ()) and name not in body:
            body[name] = sample(inner, document, ids)
    return body


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


async def everything(two: Two) -> dict[str, Any]:
    """All that the other project has."""
    store = two.post.store
    return {
        "bots": await store.bots.get(two.bot.id),
        "project": await store.projects.get(two.their_project),
        "keys": [
            (key.id, key.name, key.expires_at) for key in await store.keys.all(two.their_project)
        ],
        "endpoints": await store.webhooks.endpoints(two.their_project),
        "deliveries": await store.webhooks.page(DeliveryPage(project_id=two.their_project)),
        "secrets": await two.post.database.fetch(
            "SELECT secret, expires_at FROM webhook_secrets WHERE project_id = $1"
            " OR endpoint_id = $2 ORDER BY id",
            two.their_project,
            two.ids["webhook_id"],
        ),
    }


async def test_no_call_tells_or_changes_anything_of_another_project(two: Two) -> None:
    document = (await two.mine.get("/openapi.json")).json()
    before = await everything(two)
    assert THEIRS in json.dumps(before, default=str)
    answered = 0
    for method, path, body in calls(document, two.ids):
        answer = await two.mine.request(method, path, json=body)
        told = f"{method} {path} {body}: {answer.status_code} {answer.text}"
        assert THEIRS not in answer.text, told
        assert answer.status_code < 500, told
        # Where an id of the other project is in the path, there is nothing, or nothing for clients.
        if any(f"/{value}" in path for value in two.ids.values()):
            assert answer.status_code in {403, 404}, told
        answered += 1
    assert answered > 30
    assert await everything(two) == before


async def test_a_viewer_sees_all_and_changes_nothing(two: Two) -> None:
    document = (await two.viewer.get("/openapi.json")).json()
    before = await everything(two)
    seen = 0
    for method, path, body in calls(document, two.ids):
        if "/sessions" in path:
            continue  # its own
        answer = await two.viewer.request(method, path, json=body)
        told = f"{method} {path}: {answer.status_code} {answer.text}"
        if method == "GET":
            seen += THEIRS in answer.text
            assert answer.status_code in {200, 404}, told
        else:
            assert answer.status_code == 403, told
    assert seen > 10
    assert await everything(two) == before


async def test_what_they_ask_for_twice_is_not_the_same_request(two: Two) -> None:
    made = await two.mine.post(
        "/api/v1/bots",
        json={"meetingUrl": MEET, "deduplicationKey": THEIRS},
        headers={"Idempotency-Key": "same"},
    )
    assert made.status_code == 201
    assert made.json()["bot"]["id"] != two.bot.id


async def test_a_client_can_not_create_in_another_project(two: Two) -> None:
    body = {"meetingUrl": MEET, "projectId": two.their_project}
    refused = await two.mine.post("/api/v1/bots", json=body)
    assert (refused.status_code, refused.json()["code"]) == (404, "project_not_found")
    made = await two.admin.post("/api/v1/bots", json=body)
    assert made.json()["bot"]["projectId"] == two.their_project
    body["projectId"] = 99
    refused = await two.admin.post("/api/v1/bots", json=body)
    assert (refused.status_code, refused.json()["code"]) == (404, "project_not_found")


async def test_a_cursor_of_another_project_leads_to_none_of_it(two: Two) -> None:
    for what in ("bots", "webhooks/deliveries"):
        for _ in range(2):
            await two.post.told(project_id=two.my_project)
        await two.post.told(project_id=two.their_project, bot_display_name=THEIRS)
        first = (
            await two.admin.get(f"/api/v1/{what}?limit=1&projectId={two.their_project}")
        ).json()
        page = await two.mine.get(f"/api/v1/{what}?cursor={first['nextCursor']}")
        rows = page.json()[what.rpartition("/")[2]]
        assert rows
        assert {row["projectId"] for row in rows} == {two.my_project}


async def test_an_endpoint_gets_the_events_of_its_own_project_alone(two: Two) -> None:
    own = (await two.post.create(project_id=two.my_project)).bot
    await two.post.create()
    await two.post.webhooks.run_once()
    assert two.post.receiver.statuses("/mine") == [f"{own.id} DEPLOYING"]
    theirs = {f"/{THEIRS}", f"/{THEIRS}/callback"}
    assert {each.path for each in two.post.receiver.receipts} == {"/mine", *theirs}
