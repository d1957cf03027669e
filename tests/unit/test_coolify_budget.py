"""Whatever is asked for, however long answers take: the budget is kept, and no place is lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botpool.engines.coolify.budget import Budget, Urgency
from botpool.engines.coolify.settings import coolify_api, coolify_engine, coolify_servers
from botpool.errors import SettingsInvalid
from botpool.settings import Settings
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

CHANGE, CREATE, READ, DESCRIBE = Urgency
SECONDS = 60.0
ROUNDING = 1e-6
TOKEN = "1|secret"  # noqa: S105 - opens nothing


def bounded(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time, and end it if it waits in vain."""

    @wraps(test)
    async def run() -> None:
        async with asyncio.timeout(10_000):
            await test()

    return virtual(run)


def now() -> float:
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let all tasks go on that can at this moment."""
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Wish:
    """A request that will be made."""

    at: float
    latency: float
    urgency: Urgency
    patience: float | None = None
    """When its asker is cancelled, counted from `at`."""


class CountedBudget(Budget):
    """Counts how often it looks for room, and ends a loop in which time would stand still."""

    looks = 0

    def _let_through(self) -> None:
        self.looks += 1
        if self.looks < 1000:
            super()._let_through()


class Site:
    """Requests on a budget, with when each was let through and when it was answered."""

    def __init__(self, requests: int) -> None:
        self.budget = CountedBudget(requests)
        self.spans: list[tuple[float, float]] = []
        self.order: list[str] = []

    async def make(self, urgency: Urgency = CHANGE, latency: float = 0.0, name: str = "") -> None:
        async with self.budget.spend(urgency):
            self.order.append(name)
            begun = now()
            try:
                await asyncio.sleep(latency)
            finally:
                self.spans.append((begun, now()))

    def ask(
        self, urgency: Urgency = CHANGE, latency: float = 0.0, name: str = ""
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self.make(urgency, latency, name))

    async def fulfil(self, wish: Wish) -> None:
        await asyncio.sleep(wish.at)
        try:
            async with asyncio.timeout(wish.patience):
                await self.make(wish.urgency, wish.latency)
        except TimeoutError:
            assert wish.patience is not None

    def most_in_a_minute(self) -> int:
        """The most that the other side may have counted in any minute.

        It counts a request at some time between its departure and the arrival of its answer.
        """
        return max(
            (
                sum(begun < answered + SECONDS and over >= answered for begun, over in self.spans)
                for _, answered in self.spans
            ),
            default=0,
        )


SECONDS_OF = st.floats(0, 200, allow_nan=False) | st.sampled_from([0.0, 30.0, 60.0, 61.0])
WISHES = st.lists(
    st.builds(
        Wish, SECONDS_OF, SECONDS_OF, st.sampled_from(Urgency), st.none() | st.floats(0, 150)
    ),
    max_size=40,
)


@given(
    requests=st.integers(1, 8),
    wishes=WISHES,
    pauses=st.lists(st.tuples(SECONDS_OF, SECONDS_OF), max_size=3),
)
@example(requests=3, wishes=[Wish(0, 30, CHANGE)] * 20, pauses=[])
@example(requests=4, wishes=[Wish(0, 200, CHANGE, 0.0), Wish(0, 0, CHANGE)] * 9, pauses=[])
@settings(max_examples=150, deadline=None)
def test_no_minute_has_more_than_the_budget_whatever_the_latencies(
    requests: int, wishes: Sequence[Wish], pauses: Sequence[tuple[float, float]]
) -> None:
    async def run() -> None:
        site = Site(requests)
        # Before the first answer only a few are let through: it may tell that little is left.
        await site.make()
        await asyncio.sleep(SECONDS)
        site.spans.clear()
        start = now()
        for at, seconds in pauses:
            asyncio.get_running_loop().call_later(at, site.budget.pause, seconds)
        async with asyncio.TaskGroup() as group:
            for wish in wishes:
                group.create_task(site.fulfil(wish))
        assert site.most_in_a_minute() <= requests
        for at, seconds in pauses:
            begins = [begun - start for begun, _ in site.spans]
            assert not [begun for begun in begins if at < begun < at + seconds - ROUNDING]
        # No place is lost: a minute later there is room for all of them again.
        await asyncio.sleep(max([SECONDS, *(at + seconds for at, seconds in pauses)]) + ROUNDING)
        later = [site.ask(latency=1) for _ in range(requests)]
        before = len(site.order)
        await settle()
        assert len(site.order) == before + requests
        await asyncio.gather(*later)

    bounded(run)()


@bounded
async def test_a_place_is_free_a_minute_after_the_answer_and_no_sooner() -> None:
    site = Site(2)
    await asyncio.gather(*(site.ask(latency=latency) for latency in (5, 20, 0, 0)))
    assert site.spans == [(0, 5), (0, 20), (65, 65), (80, 80)]


@bounded
async def test_who_has_to_wait_is_served_by_urgency_and_then_in_order() -> None:
    site = Site(1)
    await site.make()
    asked = [
        site.ask(urgency, name=f"{urgency.name}-{turn}")
        for turn in (1, 2)
        for urgency in (DESCRIBE, READ, CREATE, CHANGE)
    ]
    await asyncio.gather(*asked)
    assert site.order[1:] == [
        *("CHANGE-1", "CHANGE-2"),
        *("CREATE-1", "CREATE-2"),
        *("READ-1", "READ-2"),
        *("DESCRIBE-1", "DESCRIBE-2"),
    ]


@bounded
async def test_descriptions_leave_a_tenth_and_reads_a_twentieth_for_what_is_urgent() -> None:
    site = Site(40)
    asked, let_through = [], []
    for urgency in (DESCRIBE, READ, CREATE, CHANGE):
        asked += [site.ask(urgency) for _ in range(50)]
        await settle()
        let_through.append(len(site.order))
    assert let_through == [36, 38, 39, 40]
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@bounded
async def test_even_the_smallest_budget_lets_a_description_through() -> None:
    site = Site(1)
    await site.make(DESCRIBE)
    assert site.spans == [(0, 0)]


@bounded
async def test_a_pause_lets_no_request_through_and_wakes_them_afterwards() -> None:
    site = Site(10)
    site.budget.pause(30)
    asked = [site.ask(), site.ask(READ)]
    await asyncio.sleep(10)
    asked.append(site.ask())
    await asyncio.gather(*asked)
    assert site.spans == [(30, 30)] * 3


@bounded
async def test_a_pause_holds_those_who_wait_for_room_already() -> None:
    site = Site(1)
    await site.make()
    waiting = site.ask()
    await asyncio.sleep(10)
    site.budget.pause(100)
    await waiting
    assert site.spans[-1] == (110, 110)


@bounded
async def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    site = Site(10)
    site.budget.pause(30)
    site.budget.pause(5)
    await site.make()
    assert site.spans == [(30, 30)]


@bounded
async def test_a_waiter_who_is_cancelled_takes_no_place() -> None:
    site = Site(1)
    await site.make()
    gone, stays = site.ask(name="gone"), site.ask(name="stays")
    await settle()
    gone.cancel()
    await stays
    assert site.order == ["", "stays"]
    assert site.spans[-1] == (60, 60)


@bounded
async def test_who_is_cancelled_just_when_he_is_let_through_gives_his_place_to_the_next() -> None:
    site = Site(1)
    first = site.ask(latency=5, name="first")
    await settle()
    gone, next_one = site.ask(name="gone"), site.ask(name="next")
    await first
    loop = asyncio.get_running_loop()
    # In the same step in which the budget's own timer lets him through, before he can go on.
    loop.call_at(65, gone.cancel)
    await next_one
    assert gone.cancelled()
    assert site.order == ["first", "next"]
    assert site.spans[-1] == (65, 65)


@bounded
async def test_a_request_that_is_cancelled_counts_like_one_that_was_answered() -> None:
    site = Site(1)
    gone = site.ask(latency=100)
    await asyncio.sleep(7)
    gone.cancel()
    await site.make()
    assert site.spans == [(0, 7), (67, 67)]


@bounded
async def test_a_request_that_fails_counts_like_one_that_was_answered() -> None:
    budget = Budget(1)

    async def fail() -> None:
        async with budget.spend(CHANGE):
            raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        await fail()
    async with budget.spend(CHANGE):
        assert now() == 60


@bounded
async def test_it_looks_for_room_no_more_often_than_there_is_news() -> None:
    site = Site(2)
    site.budget.pause(600)
    await asyncio.gather(*(site.ask(READ, latency=10) for _ in range(20)))
    # For each when it asks, when it is let through, and when it is answered.
    assert site.budget.looks <= 60


# Coolify's own count


class Server:
    """Counts requests as Coolify does: in windows of a minute, from the first request on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.ends_at = 0.0
        self.refused = 0

    def hit(self) -> int | None:
        """How many are left; None if there were too many."""
        if now() >= self.ends_at:
            self.count, self.ends_at = 0, now() + SECONDS
        if self.count >= self.limit:
            self.refused += 1
            return None
        self.count += 1
        return self.limit - self.count


async def call(
    server: Server, budget: Budget, urgency: Urgency = CHANGE, latency: float = 0.1
) -> None:
    """Make a request until it is answered, as the API does."""
    while True:
        async with budget.spend(urgency):
            sent_at = now()
            await asyncio.sleep(latency / 2)
            left = server.hit()
            await asyncio.sleep(latency / 2)
            if left is not None:
                budget.told(sent_at, server.limit, left)
                return
            budget.pause(server.ends_at - now())


async def made(server: Server, budget: Budget, count: int, urgency: Urgency = CHANGE) -> float:
    """Make so many requests at once, and return when the last one was answered."""
    await asyncio.gather(*(call(server, budget, urgency) for _ in range(count)))
    return now()


@bounded
async def test_what_coolify_allows_is_followed_whatever_was_thought_before() -> None:
    for told, setting, limit in ((1000, None, 1000), (1000, 50, 50), (30, 50, 30)):
        server, budget = Server(told), Budget(setting)
        await call(server, budget)
        assert budget.limit == limit
    assert Budget().limit == 200


@bounded
async def test_what_others_spend_counts_and_a_new_window_is_noticed() -> None:
    server, budget = Server(100), Budget()
    await call(server, budget)
    for _ in range(90):
        server.hit()
    await asyncio.sleep(1)
    await call(server, budget)
    assert budget.spent == 0.92
    began = now()
    assert await made(server, budget, 20) >= SECONDS
    assert server.refused == 0
    assert now() - began < SECONDS


@bounded
async def test_a_burst_right_after_coolifys_minute_is_over_does_not_wait_for_ours() -> None:
    """The first request was made half a minute before the rest of them."""
    server, budget = Server(100), Budget()
    await call(server, budget)
    await asyncio.sleep(40)
    await made(server, budget, 60)
    await asyncio.sleep(server.ends_at - now())
    began = now()
    assert await made(server, budget, 90) - began < 1


@bounded
async def test_replicas_share_one_count_and_are_hardly_ever_turned_away() -> None:
    server = Server(100)
    budgets = [Budget(replicas=lambda: 3) for _ in range(3)]
    await asyncio.gather(*(made(server, budget, 60) for budget in budgets))
    assert now() < 2 * SECONDS
    assert server.refused <= 15  # of 180, all at once


@bounded
async def test_after_a_while_a_few_ask_how_much_is_left_before_many_do() -> None:
    server, budget = Server(100), Budget()
    await call(server, budget)
    await asyncio.sleep(10)
    for _ in range(80):
        server.hit()
    await made(server, budget, 40)
    assert server.refused == 0
    assert now() > SECONDS


@bounded
async def test_descriptions_of_one_replica_leave_room_for_the_starts_of_another() -> None:
    server = Server(100)
    first, second = Budget(), Budget()
    late = asyncio.create_task(made(server, first, 200, DESCRIBE))
    await asyncio.sleep(30)
    assert server.count == 90
    began = now()
    assert await made(server, second, 10) - began < 1
    assert await late > 2 * SECONDS
    assert server.refused == 0


@bounded
async def test_an_answer_that_was_overtaken_is_no_new_window() -> None:
    budget = Budget()
    budget.told(0, 100, 40)
    await asyncio.sleep(1)
    budget.told(-1, 100, 90)
    assert budget.spent == 0.6
    budget.told(now(), 100, 90)
    assert budget.spent == 0.1


@bounded
async def test_an_answer_from_the_window_before_tells_nothing_of_the_new_one() -> None:
    budget = Budget()
    budget.told(0, 100, 40)
    await asyncio.sleep(SECONDS + 1)
    budget.told(SECONDS - 1, 100, 0)
    assert budget.spent == 0


@bounded
async def test_a_pause_that_coolify_asks_for_ends_with_its_window() -> None:
    budget = Budget()
    budget.told(0, 100, 0)
    budget.pause(10)
    async with budget.spend(CHANGE):
        assert now() == 10


# Settings


def chosen(**changes: Any) -> Settings:
    return Settings(
        **{
            "coolify_api_url": "https://c.test",
            "coolify_api_token": TOKEN,
            "coolify_project_uuid": "p",
            "coolify_server_uuid": "a",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("servers", "destinations", "found"),
    [
        ("a", None, {"a": None}),
        (" a , b,", "", {"a": None, "b": None}),
        ("a,b", "x, y", {"a": "x", "b": "y"}),
    ],
)
def test_each_server_may_have_a_destination(
    servers: str, destinations: str | None, found: dict[str, str | None]
) -> None:
    settings = chosen(coolify_server_uuid=servers, coolify_destination_uuid=destinations)
    assert coolify_servers(settings) == found
    assert coolify_engine(settings, "test").hosts() == tuple(found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coolify_api_url": None}, "BOTPOOL_COOLIFY_API_URL and BOTPOOL_COOLIFY_API_TOKEN"),
        ({"coolify_api_token": None}, "BOTPOOL_COOLIFY_API_URL and BOTPOOL_COOLIFY_API_TOKEN"),
        *(
            ({"coolify_api_url": url}, "BOTPOOL_COOLIFY_API_URL must")
            for url in ("c.test", "ftp://c.test", "https://", "http://c.test:x")
        ),
        *(
            ({"coolify_api_token": token}, "BOTPOOL_COOLIFY_API_TOKEN must")
            for token in ("", " ", "1|hidden\n2", "1|hiddén", "1|hid den")
        ),
        ({"coolify_project_uuid": None}, "BOTPOOL_COOLIFY_PROJECT_UUID must be set"),
        ({"coolify_server_uuid": None}, "BOTPOOL_COOLIFY_SERVER_UUID must be set"),
        ({"coolify_server_uuid": " ,"}, "BOTPOOL_COOLIFY_SERVER_UUID must be set"),
        ({"coolify_server_uuid": "a,b,a"}, "names a server twice"),
        ({"coolify_destination_uuid": "x,y"}, "one destination for each server"),
    ],
)
def test_what_is_wrong_with_the_settings_is_said_in_a_sentence_without_the_token(
    changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(SettingsInvalid, match=words) as raised:
        coolify_engine(chosen(**changes), "test")
    assert "hid" not in str(raised.value)


async def test_what_stands_around_a_token_is_no_part_of_it() -> None:
    shown: list[str] = []

    def version(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers["Authorization"])
        return httpx.Response(200, text="4.3.11")

    transport = httpx.MockTransport(version)
    api = coolify_api(chosen(coolify_api_token=f" {TOKEN}\n"), transport)
    await api.version()
    await api.close()
    assert shown == [f"Bearer {TOKEN}"]
