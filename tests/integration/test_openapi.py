"""The OpenAPI document: what generators of clients, and their users, need to find in it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.feed.stream import Feed
from botpool.settings import Settings

if TYPE_CHECKING:
    from tests.support.scene import Scene

CREATE = ("/api/v1/bots", "post")


@pytest.fixture
def document(scene: Scene) -> dict[str, Any]:
    settings = Settings()
    keys = Keys(scene.store, settings)
    return create_app(scene.store, scene.pool, settings, keys, Feed(scene.store)).openapi()


def calls(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method): call
        for part in ("paths", "webhooks")
        for path, methods in document[part].items()
        for method, call in methods.items()
    }


async def test_every_call_has_a_name_a_sentence_and_a_group(document: dict[str, Any]) -> None:
    found = calls(document)
    names = [call["operationId"] for call in found.values()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)
    assert {"createBot", "listBots", "getBot", "stopBot"} <= set(names)
    for call in found.values():
        assert re.fullmatch(r"[A-Z].*\.", call["summary"]), call["summary"]
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    assert {tag for call in found.values() for tag in call["tags"]} <= described


async def test_every_name_is_in_camel_case(document: dict[str, Any]) -> None:
    """Also those of parameters, and those that descriptions tell of."""
    text = json.dumps(document)
    assert "retry_after_seconds" not in text
    assert "bot_id" not in text
    for schema in document["components"]["schemas"].values():
        assert not [name for name in schema.get("properties", {}) if "_" in name]
    for call in calls(document).values():
        assert not [each["name"] for each in call.get("parameters", ()) if "_" in each["name"]]


async def test_every_error_is_the_same_schema_with_its_codes_and_headers(
    document: dict[str, Any],
) -> None:
    for call in calls(document).values():
        for status, answer in call["responses"].items():
            if status < "400":
                continue
            content = answer["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            for code, example in content["examples"].items():
                assert f"`{code}`" in answer["description"]
                assert (example["value"]["code"], example["value"]["status"]) == (code, int(status))
            if status in {"429", "503"}:
                assert answer["headers"]["Retry-After"]["schema"]["type"] == "integer"
    create = calls(document)[CREATE]["responses"]
    assert set(create["422"]["content"]["application/problem+json"]["examples"]) >= {
        "invalid_request",
        "meeting_url_unknown",
        "callback_address_private",
        "queue_timeout_out_of_bounds",
        "idempotency_mismatch",
    }
    assert "Location" in create["201"]["headers"]
    assert "WWW-Authenticate" in create["401"]["headers"]


async def test_a_field_that_need_not_be_sent_is_not_required_nor_has_it_a_default(
    document: dict[str, Any],
) -> None:
    """Some generators take a field with a default for one that has to be sent."""
    schema = document["components"]["schemas"]["CreateBot"]
    assert schema["required"] == ["meetingUrl"]
    assert not [field for field in schema["properties"].values() if "default" in field]
    assert "By default `100`." in schema["properties"]["priority"]["description"]


async def test_events_have_a_schema_where_they_are_streamed_and_where_they_are_posted(
    document: dict[str, Any],
) -> None:
    event = {"$ref": "#/components/schemas/Event"}
    stream = document["paths"]["/api/v1/stream"]["get"]["responses"]["200"]["content"]
    message = stream["text/event-stream"]["schema"]["contentSchema"]["items"]["properties"]
    assert message["data"]["contentSchema"] == event
    schemas = document["components"]["schemas"]
    assert schemas["Timeline"]["properties"]["events"]["items"] == event
    kinds = schemas["Event"]["discriminator"]["mapping"]
    assert set(kinds) == set(message["event"]["enum"])
    for name in ("bot.status_changed", "bot.event"):
        body = document["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"] == {"$ref": kinds[name]}


async def test_nothing_in_it_leads_nowhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert found == set(schemas)
    assert not [name for name in schemas if name.endswith("Out")]
