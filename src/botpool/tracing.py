"""Traces of launches for OpenTelemetry, if an endpoint is set.

A launch goes through several processes, so none of them can trace it as it goes. Its spans are made
from the times that are recorded, when its bot is in its call or has ended before that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import structlog

from botpool import __version__
from botpool.states import BotStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    from botpool.models.launches import BotOutcome

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables of OpenTelemetry that say where traces go. With either of them, they are made."""

_CLOSE_SECONDS = 3.0
_TOLD_EVERY_SECONDS = 60.0


class Traces:
    """Makes a trace of each launch. The exporter sends them, in a thread of its own."""

    def __init__(self, provider: TracerProvider, ids: TraceIds) -> None:
        self._ids = ids
        self._tracer = provider.get_tracer("botpool", __version__)

    def launched(self, bot: BotOutcome) -> None:
        """Trace a launch that is over: its bot is in its call, or has ended."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context  # noqa: PLC0415

        self._ids.next_trace = trace_id(bot.correlation_id)
        ended_at = bot.joined_at or bot.ended_at or bot.began_at
        attributes: dict[str, str | int | None] = {
            "botpool.bot_id": bot.bot_id,
            "botpool.correlation_id": bot.correlation_id,
            "botpool.platform": bot.platform,
            "botpool.engine": bot.engine,
            "botpool.host": bot.host,
            "botpool.slot": bot.slot_name,
            "botpool.attempt": bot.attempt,
            "botpool.status": bot.status,
            "botpool.cause": bot.failure_cause,
        }
        launch = self._tracer.start_span(
            "launch",
            start_time=_nanoseconds(bot.wanted_at),
            attributes={name: value for name, value in attributes.items() if value is not None},
        )
        if bot.joined_at is None and bot.status == BotStatus.FATAL:
            launch.set_status(Status(StatusCode.ERROR, bot.failure_cause))
        inside = set_span_in_context(launch)
        spans = [(str(phase), began, ended) for phase, began, ended in bot.phases()]
        if bot.began_at > bot.wanted_at:
            spans.insert(0, ("launched before", bot.wanted_at, bot.began_at))
        for name, began, ended in spans:
            span = self._tracer.start_span(name, inside, start_time=_nanoseconds(began))
            span.end(_nanoseconds(ended))
        launch.end(_nanoseconds(max(ended_at, bot.wanted_at)))


class TraceIds:
    """Makes the ids of spans by chance; that of a trace was said before."""

    next_trace = 0

    def generate_trace_id(self) -> int:
        """The id of the trace that begins."""
        return self.next_trace

    def generate_span_id(self) -> int:
        """An id that no other span of the trace has."""
        return int.from_bytes(os.urandom(8)) or 1

    def is_trace_id_random(self) -> bool:
        """It is not: it follows from the correlation id."""
        return False


def trace_id(correlation_id: str) -> int:
    """The trace of a bot: its correlation id if that is 32 hexadecimal digits, else its hash."""
    digits = correlation_id.replace("-", "").lower()
    if re.fullmatch(r"(?!0{32})[0-9a-f]{32}", digits):
        return int(digits, 16)
    return int.from_bytes(hashlib.sha256(correlation_id.encode()).digest()[:16]) or 1


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000) * 1000


@asynccontextmanager
async def tracing(replica: str) -> AsyncIterator[Traces | None]:
    """Traces, if an endpoint is set and OpenTelemetry is installed. At the end they are sent.

    An endpoint may be set for all programs of a machine, so it is only a warning that botpool can't
    send there.
    """
    variable = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if variable is None:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        _log.warning(
            f"{variable} is set, but OpenTelemetry is not installed, so launches are not traced:"
            " pip install 'botpool[otel]', or unset it"
        )
        yield None
        return
    ids = TraceIds()
    ours = {
        "service.name": "botpool",
        "service.version": __version__,
        "service.instance.id": replica,
    }
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins.
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(
        id_generator=cast("IdGenerator", ids), resource=resource, shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    exporter = logging.getLogger(OTLPSpanExporter.__module__)
    sparse = _Sparse()
    exporter.addFilter(sparse)
    try:
        yield Traces(provider, ids)
    finally:
        await _close(provider)
        exporter.removeFilter(sparse)


async def _close(provider: TracerProvider) -> None:
    """Send what is left, for some seconds at most. A receiver that hangs delays nobody longer."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def close() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # nobody waits any more, and the loop has ended
            loop.call_soon_threadsafe(closed.set)

    # Not in asyncio's own threads: the process would wait for those at its end.
    threading.Thread(target=close, name="traces", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await closed.wait()


class _Sparse(logging.Filter):
    """Lets through a line a minute: the exporter has several for each batch that it can't send."""

    def __init__(self) -> None:
        super().__init__()
        self._told = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the last line was long ago."""
        told = record.created - self._told >= _TOLD_EVERY_SECONDS
        if told:
            self._told = record.created
        return told
