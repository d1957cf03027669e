"""Bodies that can't be read or kept: a clear sentence, in our own words, and no value of theirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_bots_api import (
    BOTS,
    MEET,
    Api,
    opened,
    problem,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database

JSON = {"Content-Type": "application/json"}
UNKEPT = "must not contain NUL (\\u0000) or half of a surrogate pair."


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with opened(database) as api:
        yield api


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b'{"meetingUrl": ', "The body is not JSON: Expecting value, at character 16."),
        (b"hidden", "The body is not JSON: Expecting value, at character 1."),
        (b'{"a": "\xff"}', "The body is not UTF-8 JSON, or it is nested too deeply."),
        (b"[" * 100_000, "The body is not UTF-8 JSON, or it is nested too deeply."),
    ],
)
async def test_what_is_no_json_is_a_bad_request(api: Api, content: bytes, detail: str) -> None:
    response = await api.alice.post(BOTS, content=content, headers=JSON)
    assert problem(response, 400, "bad_request")["detail"] == detail


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "x"}]
)
async def test_a_body_must_be_called_json(api: Api, headers: dict[str, str]) -> None:
    content = json.dumps({"meetingUrl": MEET})
    response = await api.alice.post(BOTS, content=content, headers=headers)
    assert problem(response, 422, "invalid_request")["detail"] == (
        "body: must be JSON, with the header `Content-Type: application/json`."
    )


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"botDisplayName": "a\0"}, f"botDisplayName: {UNKEPT}"),
        ({"botDisplayName": "\ud83d"}, f"botDisplayName: {UNKEPT}"),
        ({"meetingUrl": f"{MEET}\0"}, f"meetingUrl: {UNKEPT}"),
        ({"deduplicationKey": "\udfff"}, f"deduplicationKey: {UNKEPT}"),
        ({"metadata": {"a": [{"b": "\0"}]}}, f"metadata: {UNKEPT}"),
        ({"metadata": {"\ud800": 1}}, f"metadata: {UNKEPT}"),
        ({"config": {"a": 2**64}}, "config: must not contain an integer of more than 64 bits."),
        (
            {"config": {"a": json.loads("[" * 200 + "]" * 200)}},
            "config: must not be nested more than 100 levels deep.",
        ),
    ],
)
async def test_what_can_t_be_kept_is_refused_by_its_field(
    api: Api, body: dict[str, Any], detail: str
) -> None:
    content = json.dumps({"meetingUrl": MEET, **body})
    response = await api.alice.post(BOTS, content=content, headers=JSON)
    assert problem(response, 422, "invalid_request")["detail"] == detail
    assert await api.count() == 0


async def test_a_pair_of_surrogates_and_the_largest_numbers_are_kept(api: Api) -> None:
    metadata = {"😀": ["😀", 2**64 - 1, -(2**63), 1.5, None, True]}
    response = await api.ask(botDisplayName="😀", metadata=metadata)
    assert response.status_code == 201
    assert response.json()["bot"]["metadata"] == metadata


@pytest.mark.parametrize("name", ["containerRef", "correlationId", "deduplicationKey"])
async def test_a_filter_can_t_be_what_nothing_has(api: Api, name: str) -> None:
    response = await api.alice.get(BOTS, params={name: "\0"})
    assert problem(response, 422, "invalid_request")["detail"] == f"{name}: {UNKEPT}"


async def test_a_reason_to_stop_must_be_kept(api: Api) -> None:
    made = (await api.ask()).json()["bot"]["id"]
    response = await api.alice.post(f"{BOTS}/{made}/stop", json={"reason": "\0"})
    assert problem(response, 422, "invalid_request")["detail"] == f"reason: {UNKEPT}"
