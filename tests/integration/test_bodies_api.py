"""Bodies that can't be read or kept: a clear sentence, in our own words, and no value of theirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from botpool.api.shapes import CreateBot
from botpool.models.bots import BotPage
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
INFINITE = "must not contain NaN, or a number that is infinite or too large."
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
        ({"metadata": {"a": float("nan")}}, f"metadata: {INFINITE}"),
        ({"metadata": {"a": [float("-inf")]}}, f"metadata: {INFINITE}"),
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


async def test_a_number_that_is_too_large_is_refused(api: Api) -> None:
    content = f'{{"meetingUrl": "{MEET}", "metadata": {{"a": 1e999}}}}'
    response = await api.alice.post(BOTS, content=content, headers=JSON)
    assert problem(response, 422, "invalid_request")["detail"] == f"metadata: {INFINITE}"


# Who asks, before what is asked


@pytest.mark.parametrize(
    "content",
    [b"no json", b"[" * 100_000, b'{"unknown": 1}', b"{}", b"x" * 2 * 2**20],
    ids=lambda content: f"{content[:9]!r} {len(content)}",
)
@pytest.mark.parametrize("path", [BOTS, "/api/v1/runtime/claim", "/api/v1/bots/1/stop"])
async def test_a_strangers_body_is_not_looked_at(api: Api, path: str, content: bytes) -> None:
    headers = {**JSON, "Authorization": "Bearer wrong"}
    response = await api.alice.post(path, content=content, headers=headers)
    problem(response, 401, "unauthorized")


# Sizes


@pytest.mark.parametrize(("name", "most"), [("metadata", 16_384), ("config", 65_536)])
async def test_a_bots_data_has_a_size(api: Api, name: str, most: int) -> None:
    fitting = {"a": "é" * ((most - len('{"a":""}')) // 2)}
    assert (await api.ask(api.alice, **{name: fitting})).status_code == 201
    response = await api.ask(api.alice, **{name: {**fitting, "b": 1}})
    assert problem(response, 422, "invalid_request")["detail"] == (
        f"{name}: must not have more than {most} bytes as JSON; it has {most + 6}."
    )
    assert await api.count() == 1


async def test_the_sizes_are_settings(database: Database) -> None:
    async with opened(database, max_metadata_bytes=2, max_config_bytes=100_000) as api:
        assert (await api.ask(config={"a": "x" * 90_000})).status_code == 201
        problem(await api.ask(metadata={"a": 1}), 422, "invalid_request")


async def test_a_list_does_not_read_configurations(api: Api) -> None:
    await api.ask(config={"secret": "x" * 60_000})
    (row,) = await api.store.bots.page(BotPage())
    assert row.config == {}
    assert (await api.store.bots.get(row.id)).config["secret"]
    assert (await api.alice.get(BOTS)).json()["bots"][0]["id"] == row.id


async def test_many_unknown_fields_are_refused_in_a_few_words(api: Api) -> None:
    body = {"meetingUrl": MEET, **{f"f{n}": 1 for n in range(80_000)}}
    with pytest.raises(ValidationError) as raised:
        CreateBot.model_validate(body)
    assert raised.value.error_count() == 1
    response = await api.ask(api.alice, **body)
    told = problem(response, 422, "invalid_request")["detail"]
    assert told == "body: has 80001 fields, of which most are unknown."
    # A few are told one by one, by names that are cut.
    response = await api.ask(api.alice, **{"x" * 10_000: 1, **{f"f{n}": 1 for n in range(25)}})
    assert len(response.content) < 3000
    told = problem(response, 422, "invalid_request")["detail"]
    assert told.endswith("; and 6 more.")
    assert "f18: Extra inputs are not permitted" in told


# Parameters


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (BOTS, "stauts=DONE"),
        (BOTS, "status=DONE&limits=1"),
        ("/api/v1/bots/1", "full=1"),
        ("/api/v1/queue", "plattform=zoom"),
        ("/api/v1/slots", "container_ref=x"),
        ("/api/v1/sessions", "limit=1"),
    ],
)
async def test_an_unknown_parameter_is_refused(api: Api, path: str, query: str) -> None:
    name = query.rsplit("&", maxsplit=1)[-1].partition("=")[0]
    response = await api.admin.get(f"{path}?{query}")
    assert problem(response, 422, "invalid_request")["detail"] == (
        f"There is no such query parameter: {name}."
    )


async def test_many_unknown_parameters_are_told_in_a_few_words(api: Api) -> None:
    query = "&".join(f"{'x' * 200}{n}=1" for n in range(100))
    response = await api.alice.get(f"{BOTS}?{query}")
    detail = problem(response, 422, "invalid_request")["detail"]
    assert len(detail) < 250
    assert detail.endswith(" and 97 more.")


@pytest.mark.parametrize("path", [f"{BOTS}/", "/api/v1/slots/", "/docs/", "/healthz/"])
async def test_a_slash_too_many_redirects_to_no_other_host(api: Api, path: str) -> None:
    response = await api.admin.get(path, headers={"Host": "elsewhere.example"})
    problem(response, 404, "not_found")
    assert "location" not in response.headers
