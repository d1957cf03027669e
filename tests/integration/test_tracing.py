"""Traces of launches, as a receiver of OpenTelemetry gets them."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from structlog.testing import capture_logs

from botpool import __version__
from botpool.metrics import Metrics
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, FailureCause
from botpool.telemetry import Telemetry
from botpool.tracing import trace_id, tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models.slots import Slot
    from tests.support.scene import Scene

STATUS_ERROR = 2


class Collector:
    """Receives traces by OTLP over HTTP."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Any] = []
        self.resource: dict[str, str] = {}
        self.answers = asyncio.Event()
        self.answers.set()

    async def receive(self, request: web.Request) -> web.Response:
        assert (request.path, request.content_type) == ("/v1/traces", "application/x-protobuf")
        sent = ExportTraceServiceRequest.FromString(await request.read())
        await self.answers.wait()
        for of_resource in sent.resource_spans:
            self.resource = texts(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += scope.spans
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    def of(self, correlation_id: str) -> dict[str, Any]:
        """The spans of a bot's trace, by their names."""
        wanted = trace_id(correlation_id).to_bytes(16)
        return {span.name: span for span in self.spans if span.trace_id == wanted}


def texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


def seconds(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/{path:.*}", collector.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ((_, collector.port),) = runner.addresses
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    yield collector
    collector.answers.set()
    await runner.cleanup()


@asynccontextmanager
async def traced(scene: Scene) -> AsyncIterator[Pool]:
    """A replica that traces. At the end everything is sent."""
    async with tracing("replica/1") as traces:
        assert traces is not None
        telemetry = Telemetry(scene.store, Metrics(), traces)
        yield Pool(scene.store, Settings(max_pool_size=3), telemetry)
        await telemetry.measure()


async def test_a_launch_is_one_trace_with_a_span_for_each_phase(
    scene: Scene, collector: Collector
) -> None:
    async with traced(scene) as pool:
        bot = (await scene.create()).bot
        slot = await scene.slot_of(bot.id)
        for status in (BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM, BotStatus.IN_CALL):
            await scene.pass_time(seconds=2)
            await pool.assignments.advance(slot.id, slot.lease, status, "says so")
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.DONE, "done")
    spans = collector.of(bot.correlation_id)
    assert len(collector.spans) == len(spans)  # one trace, and each span once
    assert bot.correlation_id.replace("-", "") == spans["launch"].trace_id.hex()
    assert spans.keys() == {"launch", "queued", "started", "claimed", "joined", "in_call"}
    launch = spans.pop("launch")
    assert (launch.parent_span_id, seconds(launch)) == (b"", 6)
    assert launch.start_time_unix_nano == round(bot.created_at.timestamp() * 1e6) * 1000
    assert {span.parent_span_id for span in spans.values()} == {launch.span_id}
    assert {name: seconds(span) for name, span in spans.items() if seconds(span)} == {
        "started": 2,
        "joined": 2,
        "in_call": 2,
    }
    assert launch.status.code != STATUS_ERROR
    said = texts(launch.attributes)
    assert said["botpool.correlation_id"] == bot.correlation_id
    assert (said["botpool.platform"], said["botpool.slot"]) == ("google-meet", slot.slot_name)
    assert (said["botpool.engine"], said["botpool.host"]) == ("process", "here")
    assert collector.resource["service.name"] == "botpool"
    assert collector.resource["service.version"] == __version__
    assert collector.resource["service.instance.id"] == "replica/1"


async def failed(scene: Scene, pool: Pool) -> tuple[str, Slot]:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    await scene.pass_time(seconds=3)
    await pool.assignments.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "says so")
    await pool.assignments.advance(
        slot.id, slot.lease, BotStatus.FATAL, "not let in", cause=FailureCause.NOT_ADMITTED
    )
    return bot.correlation_id, slot


async def test_a_launch_that_failed_is_an_error_with_its_cause(
    scene: Scene, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "our-bots")
    async with traced(scene) as pool:
        correlation_id, _ = await failed(scene, pool)
    spans = collector.of(correlation_id)
    assert spans.keys() == {"launch", "queued", "started", "claimed"}
    assert spans["launch"].status.code == STATUS_ERROR
    assert spans["launch"].status.message == "not_admitted"
    assert seconds(spans["launch"]) == 3
    assert collector.resource["service.name"] == "our-bots"


async def test_a_receiver_that_hangs_delays_the_end_by_seconds_only(
    scene: Scene, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botpool.tracing._CLOSE_SECONDS", 0.1)
    collector.answers.clear()
    async with traced(scene) as pool:
        await failed(scene, pool)
    assert not collector.spans


async def test_a_receiver_that_is_away_is_a_line_a_minute(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:  # so nobody listens there
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        async with traced(scene) as pool:
            await failed(scene, pool)
    said = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(said) == 1


async def test_without_an_endpoint_there_are_no_traces() -> None:
    async with tracing("replica/1") as traces:
        assert traces is None


async def test_an_endpoint_without_the_package_is_a_sentence_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with capture_logs() as lines:
        async with tracing("replica/1") as traces:
            assert traces is None
    (line,) = lines
    assert line["log_level"] == "warning"
    assert line["event"].startswith("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, but")
    assert "pip install 'botpool[otel]'" in line["event"]


@pytest.mark.parametrize(
    ("correlation_id", "trace"),
    [
        ("624d6822-4a05-4b73-a4bc-ce1eb1484709", "624d68224a054b73a4bcce1eb1484709"),
        ("order 7", "0fc89f8ae19394b48debd6353bb9ad33"),
        ("0" * 32, "84e0c0eafaa95a34c293f278ac52e45c"),
    ],
)
def test_a_trace_follows_from_the_correlation_id(correlation_id: str, trace: str) -> None:
    """All zeros are no valid id of a trace."""
    assert f"{trace_id(correlation_id):032x}" == trace
