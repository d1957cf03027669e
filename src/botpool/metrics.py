"""What botpool measures, as Prometheus reads it.

Counters and histograms are of one replica: each event is counted once, by the replica that brought
it about, after it was written. They are summed over replicas. Gauges that come from the database
are equal on every replica: of those, one takes the `max`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from botpool import __version__
from botpool.models.launches import Phase
from botpool.models.pulls import PullOutcome
from botpool.states import Platform, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from botpool.models.gauges import PoolGauges
    from botpool.models.launches import BotOutcome

# When a counter began is nothing that anybody asks for, and would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

TOTAL = "total"
"""The phase that stands for a whole launch: from the bot's creation into its call."""

LAUNCH_PHASES = (*(phase for phase in Phase if phase is not Phase.IN_CALL), TOTAL)
"""The phases that are measured. How long people let a bot wait before its call is not botpool's."""

_LAUNCH_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 1500)
_PULL_SECONDS = (1, 5, 10, 30, 60, 120, 300, 600, 1500)
_CALL_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric: its name as queries have it, what it says, and its labels with their values."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    of_database: bool = False
    """Whether it comes from the database, and so is equal on every replica."""


_PLATFORM = {"platform": "`google-meet`, `microsoft-teams`, `zoom`"}
_ENGINE = {"engine": "the name of an engine"}
_HOST = {"host": "the name of a host; empty while a slot is on none"}

SLOTS = Measure(
    name="botpool_slots",
    kind="gauge",
    help="How many slots there are.",
    labels={**_PLATFORM, **_ENGINE, **_HOST, "status": "a status of slots"},
    of_database=True,
)
POOL_MAX_SLOTS = Measure(
    name="botpool_pool_max_slots",
    kind="gauge",
    help="The most slots that a platform may have.",
    labels=_PLATFORM,
    of_database=True,
)
QUEUE_BOTS = Measure(
    name="botpool_queue_bots",
    kind="gauge",
    help="How many bots wait for a slot.",
    labels=_PLATFORM,
    of_database=True,
)
QUEUE_OLDEST = Measure(
    name="botpool_queue_oldest_seconds",
    kind="gauge",
    help="For how long the bot has waited that waits for longest; 0 if none waits.",
    labels=_PLATFORM,
    of_database=True,
)
HOST_HEALTHY = Measure(
    name="botpool_host_healthy",
    kind="gauge",
    help="Whether a host is healthy: 1, or 0 if launches failed there or it does not answer.",
    labels={**_ENGINE, "host": "the name of a host"},
    of_database=True,
)
WEBHOOK_BACKLOG = Measure(
    name="botpool_webhook_backlog",
    kind="gauge",
    help="How many webhooks are neither delivered nor given up; not those of paused endpoints.",
    of_database=True,
)
REPLICAS = Measure(
    name="botpool_replicas",
    kind="gauge",
    help="How many replicas run. One with both roles counts in both.",
    labels={"role": "`api`, `worker`"},
    of_database=True,
)
DATABASE_UP = Measure(
    name="botpool_database_up",
    kind="gauge",
    help="Whether this replica could read the database: 1, or 0, and then none of the metrics of"
    " the database is there.",
)
LAUNCH_SECONDS = Measure(
    name="botpool_launch_seconds",
    kind="histogram",
    help="How long the phases of launches took, counted when a bot is in its call or has ended"
    " before that.",
    labels={
        **_PLATFORM,
        **_ENGINE,
        "phase": ", ".join(f"`{phase}`" for phase in LAUNCH_PHASES)
        + ". `total` is from the bot's creation into its call",
    },
)
BOTS_ENDED = Measure(
    name="botpool_bots_ended_total",
    kind="counter",
    help="How many bots have ended.",
    labels={
        **_PLATFORM,
        "status": "`DONE`, `FATAL`, `CANCELLED`",
        "cause": "its `failureCause`; empty without one",
    },
)
HEARTBEATS = Measure(
    name="botpool_heartbeats_total",
    kind="counter",
    help="How many heartbeats of bots were taken.",
)
PULLS = Measure(
    name="botpool_pulls_total",
    kind="counter",
    help="How many pulls of images came to an end.",
    labels={
        **_ENGINE,
        "host": "the name of a host",
        "outcome": ", ".join(f"`{outcome}`" for outcome in PullOutcome)
        + ". `present`: it was there already",
    },
)
PULL_SECONDS = Measure(
    name="botpool_pull_seconds",
    kind="histogram",
    help="How long pulls took that fetched an image.",
)
RECOVERIES = Measure(
    name="botpool_recoveries_total",
    kind="counter",
    help="What was done about things that were stuck, repairs of slots included.",
    labels={"outcome": "`recovered`, `failed`, `deleted`, `skipped`"},
)
ENGINE_CALL_SECONDS = Measure(
    name="botpool_engine_call_seconds",
    kind="histogram",
    help="How long calls of engines took.",
    labels={
        **_ENGINE,
        "call": "a call of the engine's interface, such as `create` or `start`",
        "outcome": "`ok`, `refused`, `unavailable`, `cancelled`, `error`",
    },
)
EVENT_LOOP_LAG = Measure(
    name="botpool_event_loop_lag_seconds",
    kind="gauge",
    help="The longest in the last minute that this replica was late for what was due.",
)
BUILD_INFO = Measure(
    name="botpool_build_info",
    kind="gauge",
    help="Always 1.",
    labels={"version": "of this replica's botpool", "python": "of its Python"},
)

MEASURES = (
    SLOTS,
    POOL_MAX_SLOTS,
    QUEUE_BOTS,
    QUEUE_OLDEST,
    HOST_HEALTHY,
    WEBHOOK_BACKLOG,
    REPLICAS,
    DATABASE_UP,
    LAUNCH_SECONDS,
    BOTS_ENDED,
    HEARTBEATS,
    PULLS,
    PULL_SECONDS,
    RECOVERIES,
    ENGINE_CALL_SECONDS,
    EVENT_LOOP_LAG,
    BUILD_INFO,
)
"""Every metric of ours, in the order of the reference."""

RECOVERY_OUTCOMES = ("recovered", "failed", "deleted", "skipped")


class Metrics:
    """What one replica has counted, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._launches = self._histogram(LAUNCH_SECONDS, _LAUNCH_SECONDS)
        self._ended = self._counter(BOTS_ENDED)
        self._heartbeats = self._counter(HEARTBEATS)
        self._pulls = self._counter(PULLS)
        self._pull_seconds = self._histogram(PULL_SECONDS, _PULL_SECONDS)
        self._recoveries = self._counter(RECOVERIES)
        self._calls = self._histogram(ENGINE_CALL_SECONDS, _CALL_SECONDS)
        for outcome in RECOVERY_OUTCOMES:
            self._recoveries.labels(outcome)
        build = self._gauge(BUILD_INFO)
        build.labels(__version__, platform.python_version()).set(1)

    def expect_launches(self, engine: str) -> None:
        """Show the launches of an engine from the beginning, so that the first one is a change."""
        for each in Platform:
            for phase in LAUNCH_PHASES:
                self._launches.labels(each, engine, phase)

    def watch_event_loop(self, lag: Callable[[], float]) -> None:
        """Show, with each scrape, what `lag` says."""
        self._gauge(EVENT_LOOP_LAG).set_function(lag)

    # Events

    def launched(self, bot: BotOutcome) -> None:
        """Count the phases of a launch that is over: its bot is in its call, or has ended."""
        for phase, seconds in bot.phase_seconds():
            if phase is not Phase.IN_CALL:
                self._launches.labels(bot.platform, bot.engine, phase).observe(seconds)
        if bot.total_seconds is not None:
            self._launches.labels(bot.platform, bot.engine, TOTAL).observe(bot.total_seconds)

    def ended(self, platform: str, status: str, cause: str | None) -> None:
        """Count a bot that has ended."""
        self._ended.labels(platform, status, cause or "").inc()

    def heard(self) -> None:
        """Count a heartbeat."""
        self._heartbeats.inc()

    def pulled(self, engine: str, host: str, outcome: PullOutcome, seconds: float) -> None:
        """Count a pull that came to an end."""
        self._pulls.labels(engine, host, outcome).inc()
        if outcome == PullOutcome.FETCHED:
            self._pull_seconds.observe(seconds)

    def recovered(self, outcome: str) -> None:
        """Count what was done about something that was stuck."""
        self._recoveries.labels(outcome).inc()

    def called(self, engine: str, call: str, outcome: str, seconds: float) -> None:
        """Count a call of an engine."""
        self._calls.labels(engine, call, outcome).observe(seconds)

    # A scrape

    def exposition(self, gauges: PoolGauges | None, accept: str | None) -> tuple[bytes, str]:
        """All of it in a format that the reader accepts, and the name of that format.

        Without gauges, the database could not be read.
        """
        encode, content_type = choose_encoder(accept or "")
        return encode(_Scrape(self._registry, gauges)), content_type

    # Inside

    def _counter(self, measure: Measure) -> Counter:
        return Counter(measure.name, measure.help, [*measure.labels], registry=self._registry)

    def _gauge(self, measure: Measure) -> Gauge:
        return Gauge(measure.name, measure.help, [*measure.labels], registry=self._registry)

    def _histogram(self, measure: Measure, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            measure.name,
            measure.help,
            [*measure.labels],
            registry=self._registry,
            buckets=buckets,
        )


class _Scrape(CollectorRegistry):
    """What a replica has counted, and what the database says at this moment."""

    def __init__(self, counted: CollectorRegistry, gauges: PoolGauges | None) -> None:
        super().__init__()
        self._counted = counted
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Both, one metric after the other."""
        yield from self._counted.collect()
        yield _family(DATABASE_UP, [((), float(self._gauges is not None))])
        if self._gauges is not None:
            yield from _families(self._gauges)


def _families(gauges: PoolGauges) -> Iterator[Metric]:
    places = {(slots.platform, slots.engine, slots.host) for slots in gauges.slots}
    # A status that no slot has is 0, and not left out: else a query for it finds nothing.
    slots = {(*place, str(status)): 0 for place in sorted(places) for status in SlotStatus}
    slots |= {
        (each.platform, each.engine, each.host, each.status): each.count for each in gauges.slots
    }
    yield _family(SLOTS, slots.items())
    pools = gauges.pools
    yield _family(POOL_MAX_SLOTS, [((pool.platform,), pool.max_size) for pool in pools])
    yield _family(QUEUE_BOTS, [((pool.platform,), pool.queued) for pool in pools])
    yield _family(QUEUE_OLDEST, [((pool.platform,), pool.oldest_seconds) for pool in pools])
    yield _family(HOST_HEALTHY, [((host.engine, host.host), host.healthy) for host in gauges.hosts])
    yield _family(WEBHOOK_BACKLOG, [((), gauges.webhook_backlog)])
    replicas = gauges.replicas
    yield _family(REPLICAS, [(("api",), replicas.api), (("worker",), replicas.worker)])


def _family(measure: Measure, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(measure.name, measure.help, labels=[*measure.labels])
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
