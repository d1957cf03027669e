"""What a bot imports, against a botpool whose answers a test writes."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import botpool
from botpool.bot import Assignment, AssignmentEnded, Cause, Refused, Status, assignment, claim
from botpool.bot.client import Client, pauses
from botpool.states import BOT_MAY_BLAME, BOT_MAY_SAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

TOKEN = "a-token-of-one-slot"  # noqa: S105
LEASE = 7
CLAIMED = {
    "botId": 42,
    "lease": LEASE,
    "correlationId": "c-1",
    "meetingUrl": "https://meet.google.com/abc-defg-hij",
    "botDisplayName": "Notes",
    "platform": "google-meet",
    "config": {"language": "en"},
    "heartbeatIntervalMs": 1,
}
CONTINUE = {"action": "continue", "logLevel": "INFO"}
PROBLEMS = {
    401: {"code": "unauthorized", "detail": "no such slot"},
    404: {"code": "not_found", "detail": "Not Found"},
    410: {"code": "assignment_ended", "action": "exit"},
    422: {"code": "invalid_request", "detail": "There is no such status."},
    503: {"code": "database_busy"},
}


class Answer(NamedTuple):
    """What is sent back, if anything."""

    status: int
    body: bytes


def ok(body: object) -> Answer:
    return Answer(200, json.dumps(body).encode())


def problem(status: int) -> Answer:
    return Answer(status, json.dumps(PROBLEMS[status]).encode())


SILENCE = Answer(0, b"")
HANG_UP = Answer(-1, b"")


class Call(NamedTuple):
    """What was asked."""

    verb: str
    path: str
    authorization: str
    body: dict[str, Any]


class Botpool:
    """Answers each verb with what a test has written for it, the last of that again and again.

    Until it serves, it refuses connections.
    """

    def __init__(self) -> None:
        self.script = {
            "claim": [ok(CLAIMED)],
            "heartbeat": [ok(CONTINUE)],
            "status": [Answer(204, b"")],
            "events": [Answer(204, b"")],
            "logs": [Answer(204, b"")],
            # As an older botpool answers.
            "wait": [problem(404)],
        }
        self.calls: list[Call] = []
        self.given_up = asyncio.Event()
        self._news = asyncio.Condition()
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Botpool]:
        async with await asyncio.start_server(self._serve, sock=self._socket):
            yield self

    def of(self, verb: str) -> list[dict[str, Any]]:
        """The bodies that were sent for a verb."""
        return [call.body for call in self.calls if call.verb == verb]

    def statuses(self) -> list[str]:
        return [body["status"] for body in self.of("status")]

    async def called(self, verb: str, times: int = 1) -> None:
        """Return once a verb was called so often."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.of(verb)) >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        path = head.split()[1]
        verb = path.rpartition("/")[2]
        self.calls.append(Call(verb, path, headers["authorization"], body))
        answers = self.script[verb]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        async with self._news:
            self._news.notify_all()
        if answer is SILENCE:
            await reader.read()
            self.given_up.set()
        elif answer is not HANG_UP:
            length = f"Content-Length: {len(answer.body)}\r\n" if answer.body else ""
            writer.write(f"HTTP/1.1 {answer.status} Said\r\n{length}\r\n".encode() + answer.body)
            await writer.drain()
        writer.close()


@pytest.fixture
async def pool() -> AsyncIterator[Botpool]:
    async with Botpool().serving() as served:
        yield served


@asynccontextmanager
async def being(pool: Botpool, timeout_seconds: float = 10) -> AsyncIterator[Assignment]:
    """The block of a bot, which a test that fails leaves in the end."""
    async with (
        asyncio.timeout(20),
        claim(pool.url, TOKEN, timeout_seconds=timeout_seconds) as bot,
    ):
        yield bot


async def be(pool: Botpool, body: Callable[[Assignment], Awaitable[None]]) -> None:
    """A bot from its claim to its end."""
    async with being(pool) as bot:
        await body(bot)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOTPOOL_URL", raising=False)
    monkeypatch.delenv("BOTPOOL_SLOT_TOKEN", raising=False)


class Warned(logging.Handler):
    """Tells a test when the SDK logs a line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.event.set()


@pytest.fixture
def warned() -> Iterator[Warned]:
    handler = Warned()
    logging.getLogger("botpool.bot").addHandler(handler)
    yield handler
    logging.getLogger("botpool.bot").removeHandler(handler)


# The claim


async def test_a_claim_tells_which_bot_to_be(
    pool: Botpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_URL", f"{pool.url}/behind/a/proxy/")
    monkeypatch.setenv("BOTPOOL_SLOT_TOKEN", TOKEN)
    async with claim() as bot:
        assert (bot.id, bot.lease, bot.correlation_id) == (42, LEASE, "c-1")
        assert bot.meeting_url == "https://meet.google.com/abc-defg-hij"
        assert (bot.bot_display_name, bot.platform) == ("Notes", "google-meet")
        assert bot.config == {"language": "en"}
    path = "/behind/a/proxy/api/v1/runtime/claim"
    assert pool.calls[0] == Call("claim", path, f"bearer {TOKEN}", {})


async def test_a_claim_waits_until_botpool_is_there(warned: Warned) -> None:
    pool = Botpool()
    ending = asyncio.create_task(be(pool, Assignment.done))
    await asyncio.wait_for(warned.event.wait(), 10)
    async with pool.serving():
        await ending
    assert pool.statuses() == ["DONE"]
    assert warned.lines[0].startswith("claim: botpool can't be reached ([Errno ")
    assert "; trying again in 0." in warned.lines[0]


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        pytest.param(HANG_UP, "Remote end closed connection", id="hangs up"),
        pytest.param(SILENCE, "timed out", id="does not answer"),
        pytest.param(problem(503), "HTTP 503", id="can't answer now"),
        pytest.param(Answer(502, b"<html>"), "HTTP 502", id="a proxy without a botpool"),
        pytest.param(Answer(404, b"no such host"), "HTTP 404", id="a proxy that knows none"),
        pytest.param(Answer(404, b'{"detail": "?"}'), "HTTP 404", id="another program's refusal"),
        pytest.param(Answer(200, b"<html>"), "HTTP 200", id="another program's page"),
        pytest.param(Answer(200, b"[]"), "HTTP 200", id="another program's answer"),
        pytest.param(Answer(302, b""), "HTTP 302", id="sent elsewhere"),
    ],
)
@pytest.mark.parametrize("verb", ["claim", "status"])
async def test_what_is_not_botpools_answer_is_logged_and_asked_again(
    pool: Botpool, warned: Warned, verb: str, answer: Answer, line: str
) -> None:
    pool.script[verb].insert(0, answer)
    async with being(pool, timeout_seconds=0.3 if answer is SILENCE else 10):
        pass
    assert len(pool.of(verb)) >= 2
    assert line in next(said for said in warned.lines if said.startswith(f"{verb}: "))


@pytest.mark.parametrize("answer", [problem(401), Answer(401, b"who are you?")], ids=["ours", "?"])
async def test_a_token_that_is_not_known_is_an_error_that_says_so(
    pool: Botpool, answer: Answer
) -> None:
    pool.script["claim"] = [answer]
    with pytest.raises(Refused, match=r"BOTPOOL_SLOT_TOKEN is not a slot's token \(401\)"):
        await claim(pool.url, TOKEN).__aenter__()
    assert len(pool.calls) == 1


async def test_a_claim_of_an_assignment_that_is_over_says_nothing_in_a_log(
    pool: Botpool, warned: Warned
) -> None:
    pool.script["claim"] = [problem(410)]
    with pytest.raises(AssignmentEnded):
        await claim(pool.url, TOKEN).__aenter__()
    assert (len(pool.calls), warned.lines) == (1, [])


@pytest.mark.parametrize("name", ["BOTPOOL_URL", "BOTPOOL_SLOT_TOKEN"])
async def test_what_the_environment_lacks_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("BOTPOOL_SLOT_TOKEN", TOKEN)
    monkeypatch.delenv(name)
    with pytest.raises(RuntimeError, match=f"{name} is not set"):
        await claim().__aenter__()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
async def test_an_address_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="BOTPOOL_URL must look like"):
        await claim(url, TOKEN).__aenter__()


async def test_https_is_encrypted(pool: Botpool, warned: Warned) -> None:
    """The server here can't be, and a certificate is not at hand: that it is tried must do."""
    entering = asyncio.create_task(
        claim(pool.url.replace("http:", "https:"), TOKEN, timeout_seconds=0.2).__aenter__()
    )
    await asyncio.wait_for(warned.event.wait(), 10)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert pool.calls == []


def test_attempts_are_further_and_further_apart_up_to_5_seconds() -> None:
    waits = [list(islice(pauses(), 12)) for _ in range(20)]
    for one in waits:
        assert 0.05 <= one[0] <= 0.1
        assert all(2.5 <= wait <= 5 for wait in one[6:])
        assert sorted(one[:6]) == one[:6]
    assert len({one[0] for one in waits}) > 1


# Heartbeats


async def test_heartbeats_are_sent_in_the_background_under_the_lease(pool: Botpool) -> None:
    async with being(pool) as bot:
        await pool.called("heartbeat", 3)
        assert bot.log_level == "INFO"
    assert pool.of("heartbeat")[:3] == [{"lease": LEASE}] * 3


async def test_the_first_heartbeat_is_sent_at_once(pool: Botpool) -> None:
    pool.script["claim"] = [ok({**CLAIMED, "heartbeatIntervalMs": 3_600_000})]
    async with being(pool):
        await pool.called("heartbeat")
    assert pool.of("heartbeat") == [{"lease": LEASE}]


async def test_a_heartbeat_that_fails_is_logged_and_never_ends_the_bot(
    pool: Botpool, warned: Warned
) -> None:
    failures = [problem(503), HANG_UP, problem(401), problem(422), SILENCE, Answer(200, b"[]")]
    pool.script["heartbeat"] = [*failures, ok(CONTINUE)]
    async with being(pool, timeout_seconds=0.3):
        await pool.called("heartbeat", len(failures) + 2)
    assert sum(line.startswith("heartbeat: ") for line in warned.lines) >= len(failures)
    assert pool.statuses() == ["DONE"]


async def test_the_sdk_is_not_at_the_mercy_of_the_machine(
    pool: Botpool, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without room for one more thread has its heartbeat at the next beat."""
    async with being(pool):
        with monkeypatch.context() as patch:
            patch.setattr("asyncio.to_thread", _no_room)
            await warned.event.wait()
        await pool.called("heartbeat", len(pool.of("heartbeat")) + 2)
    assert "can't start new thread" in warned.lines[0]


async def _no_room(*_: object) -> None:
    raise RuntimeError("can't start new thread")


# Leaving


async def test_a_heartbeat_tells_the_bot_to_leave(pool: Botpool) -> None:
    pool.script["heartbeat"] = [ok(CONTINUE), ok({**CONTINUE, "action": "leave"})]
    async with being(pool) as bot:
        await bot.leave_requested()
        assert len(pool.of("heartbeat")) >= 2
    assert pool.statuses() == ["DONE"]


@pytest.mark.parametrize("before", [[], [problem(503), HANG_UP], [ok(CONTINUE)]])
async def test_an_order_to_leave_is_heard_before_the_next_heartbeat(
    pool: Botpool, before: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "_SHORTEST_WAIT_SECONDS", 0)
    pool.script["claim"] = [ok({**CLAIMED, "heartbeatIntervalMs": 3_600_000})]
    pool.script["wait"] = [*before, ok({"action": "leave"})]
    async with being(pool) as bot:
        await bot.leave_requested()
    assert pool.of("wait") == [{"lease": LEASE}] * (len(before) + 1)


async def test_a_botpool_that_knows_no_waiting_is_asked_once(pool: Botpool) -> None:
    async with being(pool):
        await pool.called("wait")
        await pool.called("heartbeat", times=20)
    assert len(pool.of("wait")) == 1


async def test_a_bot_that_waits_hears_that_its_assignment_is_over(pool: Botpool) -> None:
    pool.script["claim"] = [ok({**CLAIMED, "heartbeatIntervalMs": 3_600_000})]
    pool.script["wait"] = [problem(410)]
    with pytest.raises(AssignmentEnded):
        async with being(pool):
            await asyncio.Event().wait()


async def test_the_end_of_the_block_ends_the_wait(pool: Botpool) -> None:
    pool.script["wait"] = [SILENCE]
    async with being(pool):
        await pool.called("wait")
    await asyncio.wait_for(pool.given_up.wait(), 10)


async def test_sigterm_tells_the_bot_to_leave(pool: Botpool) -> None:
    # Should the SDK not see to it, the signal must not end the tests.
    signal.signal(signal.SIGTERM, lambda *_: None)
    async with being(pool) as bot:
        signal.raise_signal(signal.SIGTERM)
        await bot.leave_requested()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert pool.statuses() == ["DONE"]


# The assignment is over


@pytest.mark.parametrize("answer", [ok({"action": "exit"}), problem(410)], ids=["exit", "410"])
async def test_a_bot_whose_assignment_is_over_is_cancelled_and_says_no_more(
    pool: Botpool, answer: Answer
) -> None:
    pool.script["heartbeat"] = [ok(CONTINUE), answer]
    cleaned_up = []

    async def body(bot: Assignment) -> None:
        try:
            await bot.leave_requested()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    with pytest.raises(AssignmentEnded):
        await be(pool, body)
    assert (cleaned_up, pool.statuses(), len(pool.of("heartbeat"))) == ([True], [], 2)
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_a_bot_that_holds_on_is_told_again(pool: Botpool) -> None:
    async def body(bot: Assignment) -> None:
        with suppress(asyncio.CancelledError):
            await bot.leave_requested()
        with pytest.raises(AssignmentEnded):
            await bot.status(Status.IN_CALL)

    pool.script["heartbeat"] = [problem(410)]
    with pytest.raises(AssignmentEnded):
        await be(pool, body)
    assert pool.statuses() == []


async def test_what_goes_wrong_after_the_assignment_is_over_is_not_hidden(pool: Botpool) -> None:
    async def body(bot: Assignment) -> None:
        try:
            await bot.leave_requested()
        finally:
            raise ZeroDivisionError

    pool.script["heartbeat"] = [problem(410)]
    with pytest.raises(ZeroDivisionError):
        await be(pool, body)
    assert pool.statuses() == []


async def test_a_bot_that_is_cancelled_by_others_too_stays_cancelled(pool: Botpool) -> None:
    async def body(bot: Assignment) -> None:
        try:
            await bot.leave_requested()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.sleep(0)

    pool.script["heartbeat"] = [problem(410)]
    task = asyncio.create_task(be(pool, body))
    with pytest.raises(asyncio.CancelledError):
        await task


# The status


async def test_a_status_is_sent_under_the_lease(pool: Botpool) -> None:
    async with being(pool) as bot:
        await bot.status(Status.IN_WAITING_ROOM)
        await bot.status("IN_CALL", "the host let it in")
    assert pool.of("status") == [
        {"lease": LEASE, "status": "IN_WAITING_ROOM"},
        {"lease": LEASE, "status": "IN_CALL", "reason": "the host let it in"},
        {"lease": LEASE, "status": "DONE"},
    ]


async def test_a_status_after_the_end_of_the_assignment_ends_the_bot(pool: Botpool) -> None:
    pool.script["status"] = [problem(410)]
    with pytest.raises(AssignmentEnded):
        await be(pool, lambda bot: bot.status(Status.IN_CALL))
    assert pool.statuses() == ["IN_CALL"]


async def test_a_status_that_botpool_refuses_is_an_error_in_the_bot(pool: Botpool) -> None:
    pool.script["status"] = [problem(422), Answer(204, b"")]
    with pytest.raises(Refused, match=r"There is no such status\. \(422 invalid_request\)"):
        await be(pool, lambda bot: bot.status("DANCING"))
    assert pool.statuses() == ["DANCING", "FATAL"]


async def test_no_heartbeat_comes_after_the_block(pool: Botpool) -> None:
    """Its answer would cancel whatever the program does next."""
    pool.script["status"] = [problem(410)]
    with pytest.raises(AssignmentEnded):
        await be(pool, lambda bot: bot.status(Status.IN_CALL))
    pool.script["heartbeat"] = [problem(410)]
    sent = len(pool.of("heartbeat"))
    for _ in range(10):
        await Client(pool.url, TOKEN, 10).ask("claim", {})
    assert len(pool.of("heartbeat")) <= sent + 1


def test_the_statuses_are_those_that_a_bot_may_say() -> None:
    assert set(Status) == {str(status) for status in BOT_MAY_SAY}
    assert set(Cause) == {str(cause) for cause in BOT_MAY_BLAME}


async def test_events_and_log_lines_are_sent_under_the_lease(pool: Botpool) -> None:
    async with being(pool) as bot:
        await bot.event("participant.joined", {"name": "A"})
        await bot.event("recording")
        await bot.log("first\nsecond\0\n" + "x" * 5000, "warning")
        await bot.log("\n".join(map(str, range(501))))
    assert pool.of("events") == [
        {"lease": LEASE, "events": [{"type": "participant.joined", "data": {"name": "A"}}]},
        {"lease": LEASE, "events": [{"type": "recording", "data": {}}]},
    ]
    first, *rest = pool.of("logs")
    assert first == {
        "lease": LEASE,
        "lines": [{"line": line, "level": "warning"} for line in ("first", "second", "x" * 4000)],
    }
    assert [len(each["lines"]) for each in rest] == [500, 1]


async def test_a_cause_is_told(pool: Botpool) -> None:
    async with claim(pool.url, TOKEN) as bot:
        await bot.status(Status.FATAL, "it was shown the door", Cause.LEFT_BY_HOST)
    (said,) = pool.of("status")
    assert said["cause"] == "left_by_host"


# The end


async def _fatal(bot: Assignment) -> None:
    await bot.status(Status.FATAL, "the host did not let it in")


async def _fails(_: Assignment) -> None:
    raise ZeroDivisionError("nothing to divide by")


async def _fails_after_it_is_done(bot: Assignment) -> None:
    await bot.done()
    raise ZeroDivisionError


async def _nothing(_: Assignment) -> None:
    pass


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (_nothing, [("DONE", None)]),
        (Assignment.done, [("DONE", None)]),
        (_fatal, [("FATAL", "the host did not let it in")]),
        (_fails, [("FATAL", "ZeroDivisionError: nothing to divide by")]),
        (_fails_after_it_is_done, [("DONE", None)]),
    ],
)
async def test_the_end_of_the_block_is_the_end_of_the_bot_and_is_said_once(
    pool: Botpool,
    body: Callable[[Assignment], Awaitable[None]],
    said: list[tuple[str, str | None]],
) -> None:
    with suppress(ZeroDivisionError):
        await be(pool, body)
        assert body not in {_fails, _fails_after_it_is_done}, "the error was swallowed"
    assert [(body["status"], body.get("reason")) for body in pool.of("status")] == said


async def test_a_bot_that_is_cancelled_from_outside_is_fatal(pool: Botpool) -> None:
    task = asyncio.create_task(be(pool, Assignment.leave_requested))
    await pool.called("heartbeat")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.statuses() == ["FATAL"]


async def test_a_failure_is_raised_even_if_botpool_does_not_want_to_know_of_it(
    pool: Botpool,
) -> None:
    pool.script["status"] = [problem(410)]
    with pytest.raises(ZeroDivisionError):
        await be(pool, _fails)
    assert pool.statuses() == ["FATAL"]


async def test_a_reason_is_cut_to_what_the_database_can_hold(pool: Botpool) -> None:
    async def body(_: Assignment) -> None:
        raise ValueError("whatever\0 \ud800 " + "x" * 2000)

    with pytest.raises(ValueError, match="whatever"):
        await be(pool, body)
    (said,) = pool.of("status")
    assert said["reason"].startswith("ValueError: whatever ? xxx")
    assert len(said["reason"]) == 1000


async def test_no_heartbeat_comes_after_the_last_word(pool: Botpool) -> None:
    """It would be told that the assignment is over, and the bot would not end well."""
    async with being(pool) as bot:
        await pool.called("heartbeat")
        await bot.done()
        pool.script["heartbeat"] = [problem(410)]
        for _ in range(10):
            await bot.status(Status.DONE)
    heartbeats = [index for index, call in enumerate(pool.calls) if call.verb == "heartbeat"]
    first_word = [call.verb for call in pool.calls].index("status")
    assert max(heartbeats) <= first_word + 1


async def test_a_heartbeat_under_way_does_not_hold_up_the_end(pool: Botpool) -> None:
    pool.script["heartbeat"] = [SILENCE]
    async with being(pool, timeout_seconds=60) as bot:
        await pool.called("heartbeat")
        await bot.done()
        await pool.given_up.wait()
    assert pool.statuses() == ["DONE"]


# What it is made of


def test_it_needs_nothing_beyond_the_standard_library() -> None:
    source = Path(botpool.__file__).parents[1]
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import botpool.bot.sample;"
        "print(*(name for name in sys.modules if name.startswith('botpool')))"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True
    )
    assert sorted(run.stdout.split()) == [
        "botpool",
        "botpool.bot",
        "botpool.bot.assignment",
        "botpool.bot.client",
        "botpool.bot.sample",
    ]
