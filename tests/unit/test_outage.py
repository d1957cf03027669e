"""An outage of the database is told in a few lines, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from botpool.errors import DatabaseUnreachable, InvalidRequest
from botpool.logs import log_failure
from botpool.store.postgres.outage import Outage
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import MutableMapping

BEGUN, GOES_ON, OVER = (
    "the database can't be used",
    "the database still can't be used",
    "the database can be used again",
)


def call(outage: Outage, error: Exception | None = None) -> None:
    """A call that ends like this."""
    if error is None:
        with outage.noticed():
            return
    with pytest.raises(type(error)), outage.noticed():
        raise error


def told(lines: list[MutableMapping[str, object]]) -> list[tuple[object, object]]:
    return [(line["event"], line.get("for_ms")) for line in lines]


@virtual
async def test_it_is_told_when_it_begins_now_and_then_and_when_it_is_over() -> None:
    outage = Outage()
    with capture_logs() as lines:
        call(outage)
        for _ in range(600):
            call(outage, DatabaseUnreachable("Connection refused"))
            await asyncio.sleep(0.125)
        for _ in range(100):
            call(outage)
            await asyncio.sleep(0.125)
    assert told(lines) == [(BEGUN, None), (GOES_ON, 30_000), (GOES_ON, 60_000), (OVER, 74_875)]
    assert lines[0]["error"] == "Connection refused"


@virtual
async def test_while_some_calls_fail_those_that_succeed_do_not_end_it() -> None:
    outage = Outage()
    with capture_logs() as lines:
        for _ in range(20):
            call(outage, DatabaseUnreachable("No space left on device"))
            call(outage)
            await asyncio.sleep(1)
    assert told(lines) == [(BEGUN, None)]


@virtual
async def test_a_call_that_the_database_refuses_is_no_outage() -> None:
    outage = Outage()
    with capture_logs() as lines:
        call(outage, InvalidRequest("no"))
        call(outage)
    assert lines == []


def test_what_fails_because_of_it_is_only_a_line_for_debugging() -> None:
    with capture_logs() as lines:
        log_failure("can't look", DatabaseUnreachable("gone"), what="queue")
        log_failure("can't look", InvalidRequest("no"), what="queue")
        log_failure("can't look", TimeoutError())
    assert [(line["log_level"], line["error"]) for line in lines] == [
        ("debug", "gone"),
        ("warning", "no"),
        ("warning", "TimeoutError"),
    ]
