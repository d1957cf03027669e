"""Log lines: for machines and for eyes, from us and from libraries, and never in the way."""

from __future__ import annotations

import io
import logging
import re
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import structlog

from botpool.logs import configure_logs, log_transitions
from botpool.models.transitions import Transition
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = Transition(
    id=7,
    at=datetime(2026, 1, 1, tzinfo=UTC),
    machine="bot",
    platform=Platform.ZOOM,
    slot_id=None,
    slot_name="pool-zoom-001",
    container_ref=None,
    lease=None,
    bot_id=99,
    correlation_id="c-99",
    from_status="QUEUED",
    to_status="DEPLOYING",
    reason="a slot is free",
    details={},
)


class Faulty(io.StringIO):
    """A stream that can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    root = logging.getLogger()
    before = [*root.handlers]
    yield
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    for handler in {*root.handlers} - {*before}:
        root.removeHandler(handler)


def fail() -> None:
    secret = "".join(["hun", "ter22"])
    raise ZeroDivisionError("by nothing" if secret else None)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_that_can_t_be_written_raises_nothing_and_is_counted() -> None:
    stream = Faulty()
    configure_logs("INFO", "json", stream)
    stream.full = True
    log_transitions([STEP, STEP])
    stream.full = False
    log_transitions([STEP, STEP])
    assert [line.get("lost_lines") for line in lines(stream)] == [2, None]


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_closed_stream_raises_nothing(style: Any, capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure_logs("INFO", style, stream)
    stream.close()
    log_transitions([STEP])
    logging.getLogger("asyncpg").warning("of a library")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("value", "written"), [("\ud800", "\\ud800"), (2**70, str(2**70))])
def test_a_value_that_is_no_common_json_is_written_all_the_same(
    value: object, written: str
) -> None:
    stream = io.StringIO()
    configure_logs("INFO", "json", stream)
    structlog.get_logger().info("odd", value=value)
    assert written in stream.getvalue()


def test_a_transition_is_written_for_machines_with_all_that_it_has() -> None:
    stream = io.StringIO()
    configure_logs("INFO", "json", stream)
    log_transitions([STEP])
    (line,) = lines(stream)
    assert (line["from"], line["to"], line["slot_id"], line["details"]) == (
        "QUEUED",
        "DEPLOYING",
        None,
        {},
    )


def test_an_eye_sees_first_what_matters_and_nothing_that_is_empty() -> None:
    stream = io.StringIO()
    configure_logs("INFO", "console", stream)
    log_transitions([STEP])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    names = re.findall(r"(\w+)=", plain)
    assert names[:5] == ["slot_name", "bot_id", "from", "to", "reason"]
    assert {"id", "platform"} <= {*names}
    assert "None" not in plain
    assert "{}" not in plain


@pytest.mark.parametrize("name", ["uvicorn.error", "asyncpg.pool", "asyncio"])
def test_warnings_of_libraries_are_lines_like_ours(name: str) -> None:
    stream = io.StringIO()
    configure_logs("DEBUG", "json", stream)
    logging.getLogger(name).info("not this")
    logging.getLogger(name).warning("odd: %s\n", "it")
    try:
        fail()
    except ZeroDivisionError:
        logging.getLogger(name).exception("failed")
    warning, error = lines(stream)
    assert (warning["level"], warning["logger"], warning["event"]) == ("warning", name, "odd: it")
    assert (error["level"], error["event"]) == ("error", "failed")
    assert error["exception"].endswith("ZeroDivisionError: by nothing")


def test_warnings_of_python_are_lines_like_ours(capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure_logs("INFO", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # What a library does, whose text is not ours.
        warnings.showwarning("it is old", DeprecationWarning, "library.py", 7)
    (line,) = lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "library.py:7: DeprecationWarning: it is old" in line["event"]
    assert capfd.readouterr() == ("", "")


def test_a_trace_for_the_eye_shows_no_variables() -> None:
    stream = io.StringIO()
    configure_logs("INFO", "console", stream)
    try:
        fail()
    except ZeroDivisionError:
        logging.getLogger("uvicorn.error").exception("failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "hunter22" not in stream.getvalue()


def test_libraries_are_written_once_however_often_logs_are_set_up() -> None:
    stream = io.StringIO()
    configure_logs("INFO", "json", stream)
    configure_logs("INFO", "json", stream)
    logging.getLogger("asyncpg").warning("once")
    assert len(lines(stream)) == 1
