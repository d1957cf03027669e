"""What a receiver can do to a delivery: fail, hang, redirect, never end, or be where it may not."""

from __future__ import annotations

import asyncio
import io
import ssl
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import orjson
import pytest
import structlog
from aiohttp import web

from botpool.feed.webhooks import RETRY_SECONDS
from botpool.logs import configure_logs
from botpool.states import BotStatus
from tests.support.receiver import new_post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database
    from tests.support.receiver import Post

SECRET = "whsec_" + "c2VjcmV0" * 4


@pytest.fixture
async def post(database: Database) -> AsyncIterator[Post]:
    async with new_post(database) as post:
        yield post


async def test_a_failed_delivery_is_tried_for_a_day_and_given_up(post: Post) -> None:
    bot = await post.told("/a")
    post.receiver.answers["/a"] = [web.Response(status=500) for _ in range(20)]
    attempts = await post.attempts(bot)
    assert [attempt.status for attempt in attempts] == [500] * 11
    waits = [(after.at - before.at).total_seconds() for before, after in pairwise(attempts)]
    assert all(
        0.8 <= wait / planned <= 1.2 for wait, planned in zip(waits, RETRY_SECONDS, strict=True)
    )
    assert sum(RETRY_SECONDS) / 3600 == pytest.approx(24, abs=1)
    assert len(set(waits)) == len(waits), "no two alike: they are jittered"
    assert len({receipt.id for receipt in post.receiver.receipts}) == 1
    (delivery,) = await post.store.webhooks.deliveries(bot.id)
    assert (delivery.delivered_at, delivery.given_up_at) == (None, attempts[-1].at)


async def test_a_retry_is_not_made_before_its_time(post: Post) -> None:
    await post.told("/a")
    post.receiver.answers["/a"] = [web.Response(status=500)]
    await post.webhooks.run_once()
    await post.pass_time(seconds=RETRY_SECONDS[0] * 0.8 - 0.1)
    assert await post.webhooks.run_once() == 0
    await post.pass_time(seconds=RETRY_SECONDS[0] * 0.4 + 0.1)
    assert await post.webhooks.run_once() == 1


async def test_a_receiver_that_is_gone_is_given_up_at_once(post: Post) -> None:
    bot = await post.told("/a")
    post.receiver.answers["/a"] = [web.Response(status=410)]
    assert [attempt.status for attempt in await post.attempts(bot)] == [410]


async def test_a_redirect_is_a_failure_and_not_followed(post: Post) -> None:
    bot = await post.told("/a")
    post.receiver.answers["/a"] = [
        web.Response(status=status, headers={"location": post.url("/b")})
        for status in (301, 307, 308)
    ]
    attempts = await post.attempts(bot)
    assert [attempt.status for attempt in attempts] == [301, 307, 308, 204]
    assert {receipt.path for receipt in post.receiver.receipts} == {"/a"}


async def test_a_cookie_is_not_sent_back(post: Post) -> None:
    bot = await post.told("/a")
    post.receiver.answers["/a"] = [web.Response(headers={"set-cookie": "a=b"})]
    await post.advance(bot, BotStatus.IN_CALL)
    assert await post.webhooks.run_once() == 2
    assert "cookie" not in post.receiver.receipts[-1].headers


async def test_a_proxy_of_the_environment_is_not_asked(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    await post.told()
    assert await post.webhooks.run_once() == 1
    assert len(post.receiver.receipts) == 1


async def test_no_answer_in_time_is_a_failure(post: Post) -> None:
    post.receiver.hanging = {"/hangs"}
    post.webhooks.attempt_seconds = 0.05
    bot = await post.told("/hangs")
    await post.webhooks.run_once()
    (attempt,) = await post.recorded(bot)
    assert (attempt.status, attempt.error) == (None, "no answer within 0.05 s")
    assert attempt.took_ms >= 50


async def test_an_endless_answer_is_not_read_to_its_end(post: Post) -> None:
    """Its status is what counts."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"x" * 1000)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://hooks.example.com:{server.sockets[0].getsockname()[1]}/"
        bot = (await post.create(callback_url=url)).bot
        await post.webhooks.run_once()
    (attempt,) = await post.recorded(bot)
    assert attempt.status == 200


async def test_a_private_address_is_refused_unless_allowed(database: Database) -> None:
    async with new_post(database, allow_private_callbacks=False) as post:
        bot = await post.told()
        await post.webhooks.run_once()
        (attempt,) = await post.recorded(bot)
        assert attempt.error == "hooks.example.com has an address that is not public."
        assert post.receiver.receipts == []


async def test_the_server_name_of_tls_is_the_hosts(post: Post) -> None:
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: names.append(name)

    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(nothing, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://hooks.example.com:{server.sockets[0].getsockname()[1]}/"
        bot = (await post.create(callback_url=url)).bot
        await post.webhooks.run_once()
    assert names == ["hooks.example.com"]
    (attempt,) = await post.recorded(bot)
    assert attempt.status is None, "it has no certificate for that name"


async def test_no_secret_is_logged(database: Database) -> None:
    stream = io.StringIO()
    configure_logs("DEBUG", "json", stream)
    try:
        async with new_post(database, webhook_secret=SECRET) as post:
            bot = await post.told("/hidden?token=hidden")
            post.receiver.answers["/hidden"] = [web.Response(status=500)]
            await post.advance(bot, BotStatus.IN_CALL)
            await post.attempts(bot)
            bad = (await post.create(callback_url="http://hidden:hidden@[::/hidden")).bot
            await post.webhooks.run_once()
            (attempt,) = await post.recorded(bad)
            assert attempt.error == "InvalidURL"
    finally:
        structlog.reset_defaults()
    lines = [orjson.loads(line) for line in stream.getvalue().splitlines()]
    outcomes = [line["outcome"] for line in lines if line["event"] == "webhook"]
    assert outcomes == ["failed", "delivered", "delivered", "failed"]
    assert "hidden" not in stream.getvalue()
    assert SECRET.removeprefix("whsec_") not in stream.getvalue()
