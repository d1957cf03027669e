"""The command line's words and exit codes, without a server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.main import get_command

from botpool.cli import patience
from botpool.cli.api import Api
from botpool.cli.app import app, exit_code
from botpool.cli.bots import _new_lines
from botpool.cli.events import Events
from botpool.cli.exits import MEANINGS, CommandFailed, Exit
from botpool.cli.launch import PHASES, Until, bar, outcome
from botpool.cli.options import PlatformName
from botpool.cli.output import Column, Styled, plain, plain_table, without_control
from botpool.cli.place import find_place
from botpool.cli.pool import _MENDS
from botpool.cli.psql import without_password
from botpool.errors import BotNotFound, DatabaseUnreachable, SettingsInvalid
from botpool.meetings import PLATFORM_NAMES
from botpool.models.attention import NeedKind
from botpool.models.launches import Phase
from botpool.serving_note import ServingNote, noted
from botpool.settings import Settings
from botpool.tasks.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from botpool.cli.output import Row

URL = "http://botpool.test"
KEY = "bp_admin_a-key-that-is-long-enough"

# Commands that print nothing to parse, or what another program prints.
NO_JSON = {"serve", "demo", "psql", "bots delete", "projects delete", "webhooks delete"}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("BOTPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BOTPOOL_DATA_DIR", str(tmp_path))


@pytest.fixture
def _remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_URL", URL)
    monkeypatch.setenv("BOTPOOL_API_KEY", KEY)
    monkeypatch.setattr(patience, "_TRIES", Backoff(0))


def api(answer: Callable[[httpx.Request], httpx.Response]) -> Api:
    """The API at a botpool that answers like this."""
    settings = Settings()
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url=URL)
    return Api(settings, find_place(settings), client)


def problem(status: int, code: str, detail: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": detail}, headers=headers)


def refused(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("All connection attempts failed")


def cut(_: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("")


@pytest.mark.usefixtures("_remote")
@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (
            problem(401, "unauthorized", "The request has no valid API key."),
            Exit.KEY,
            f"The botpool at {URL} doesn't know the key in BOTPOOL_API_KEY.",
        ),
        (
            problem(403, "forbidden", "The key doesn't allow this."),
            Exit.KEY,
            "The key doesn't allow this.",
        ),
        (
            problem(404, "bot_not_found", "There is no bot 7."),
            Exit.NOT_FOUND,
            "There is no bot 7.",
        ),
        (
            problem(429, "too_many_requests", "The key is used too often.", **{"Retry-After": "3"}),
            Exit.TOO_MANY,
            "The key is used too often. Try again in 3 s.",
        ),
        (
            problem(503, "database_unreachable", "The database doesn't answer."),
            Exit.UNAVAILABLE,
            f"The botpool at {URL} can't do this now: The database doesn't answer.",
        ),
        (
            problem(409, "bot_live", "The bot has not ended yet."),
            Exit.FAILED,
            "The bot has not ended yet.",
        ),
        (
            httpx.Response(502, text="<h1>Bad Gateway</h1>"),
            Exit.UNAVAILABLE,
            f"What is in front of botpool at {URL} answers 502: botpool doesn't answer it.",
        ),
        (
            httpx.Response(200, text="<h1>It works!</h1>"),
            Exit.NOT_BOTPOOL,
            f"What answers at {URL} is not botpool (200): check BOTPOOL_URL.",
        ),
        (
            httpx.Response(404, json={"message": "no Route matched"}),
            Exit.NOT_BOTPOOL,
            f"What answers at {URL} is not botpool (404): check BOTPOOL_URL.",
        ),
        (
            httpx.Response(301, headers={"Location": "https://botpool.test/"}),
            Exit.NOT_BOTPOOL,
            f"{URL} redirects to https://botpool.test/: correct BOTPOOL_URL.",
        ),
    ],
    ids=lambda value: str(getattr(value, "status_code", "")),
)
async def test_what_the_api_refuses_is_a_sentence_with_its_own_exit_code(
    answer: httpx.Response, code: Exit, sentence: str
) -> None:
    with pytest.raises(CommandFailed) as failed:
        await api(lambda _: answer).get("/bots/7")
    assert (failed.value.code, str(failed.value)) == (code, sentence)
    assert exit_code(failed.value) is code


@pytest.mark.usefixtures("_remote")
async def test_a_botpool_that_does_not_answer_is_a_sentence_and_exit_code_4() -> None:
    with pytest.raises(CommandFailed, match=f"^Nothing answers at {URL}: .*check BOTPOOL_URL"):
        await api(refused).get("/bots")
    with pytest.raises(CommandFailed, match=r"was cut.$"):
        await api(cut).get("/bots")
    with pytest.raises(CommandFailed, match=r"may or may not be done.$") as failed:
        await api(cut).post("/bots", {})
    assert failed.value.code is Exit.NO_ANSWER


def test_errors_of_the_database_keep_their_exit_codes() -> None:
    errors = (SettingsInvalid(), DatabaseUnreachable(), BotNotFound(), CommandFailed("no"))
    assert [exit_code(error) for error in errors] == [2, 3, 1, 1]
    assert MEANINGS.keys() == {*Exit}


@pytest.mark.usefixtures("_remote")
async def test_a_list_is_read_page_by_page_up_to_its_limit() -> None:
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        first = int(request.url.params.get("cursor", 0))
        last = first + int(request.url.params["limit"])
        rows = [*range(first, min(last, 450))]
        return httpx.Response(
            200, json={"bots": rows, "nextCursor": str(last) if last < 450 else None}
        )

    assert await api(answer).pages("/bots", "bots", 300, platform="zoom") == {
        "bots": [*range(300)],
        "nextCursor": "300",
    }
    assert asked == [
        {"platform": "zoom", "limit": "200"},
        {"platform": "zoom", "limit": "100", "cursor": "200"},
    ]
    whole = await api(answer).pages("/bots", "bots", None)
    assert whole == {"bots": [*range(450)], "nextCursor": None}


@pytest.mark.usefixtures("_remote")
async def test_events_go_on_after_the_last_one_when_the_connection_is_cut() -> None:
    whole = 'id: 1\n\nid: 2\ndata: {"n": 1}\n\nid: 3\ndata: {"n": 2}\n\n'
    half = 'id: 4\ndata: {"n'
    answers: list[httpx.Response | None] = [
        httpx.Response(200, text=whole + half),
        None,
        problem(503, "database_busy", "Busy."),
        httpx.Response(200, text='id: 5\ndata: {"n": 3}\n\n'),
        problem(410, "position_gone", "The stream doesn't go back to this position."),
        httpx.Response(200, text='id: 9\ndata: {"n": 4}\n\n'),
        problem(401, "unauthorized", "no"),
    ]
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Last-Event-ID"))
        found = answers[len(asked) - 1]
        return refused(request) if found is None else found

    events: list[Any] = []

    async def follow() -> None:
        async for event in Events(api(answer)).follow():
            events.append(event["n"])  # noqa: PERF401 - it ends by an error

    with pytest.raises(CommandFailed) as failed:
        await follow()
    assert failed.value.code is Exit.KEY
    assert events == [1, 2, 3, 4]
    assert asked == [None, "3", "3", "3", "5", None, "9"]


@pytest.mark.usefixtures("_remote")
async def test_the_first_call_of_what_watches_fails_at_once() -> None:
    with pytest.raises(CommandFailed, match="Nothing answers"):
        await anext(aiter(Events(api(refused)).follow()))


def test_without_an_address_it_is_told_that_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=f"^No botpool runs in {tmp_path}: run `botpool serve`"):
        find_place(Settings())


def test_a_botpool_that_runs_is_found_by_its_note_and_one_that_was_killed_is_told_of(
    tmp_path: Path,
) -> None:
    (tmp_path / "admin.key").write_text(f"{KEY}\n")
    with noted(tmp_path, ServingNote("http://127.0.0.1:1234", 42, None)):
        (note,) = (tmp_path / "serving").iterdir()
        left = note.read_bytes()
        place = find_place(Settings())
        assert (place.url, place.key, place.is_here) == ("http://127.0.0.1:1234", KEY, True)
    assert not [*(tmp_path / "serving").iterdir()]
    note.write_bytes(left)  # as a killed process leaves it
    sentence = "any more: process 42, which listened on http://127.0.0.1:1234, was killed"
    with pytest.raises(CommandFailed, match=sentence) as failed:
        find_place(Settings())
    assert failed.value.code is Exit.NO_ANSWER
    with noted(tmp_path, ServingNote("http://127.0.0.1:1235", 43, None)):
        assert find_place(Settings()).url == "http://127.0.0.1:1235"
        assert not note.exists()
    for broken in (b"", b"[]", b'{"url": 1}'):
        note.write_bytes(broken)
        with pytest.raises(CommandFailed, match=r"^No botpool runs in"):
            find_place(Settings())


def test_a_botpool_on_another_database_is_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin.key").write_text(f"{KEY}\n")
    monkeypatch.setenv("BOTPOOL_DATABASE_URL", "postgresql://me:secret@db/one")
    with noted(tmp_path, ServingNote.of(Settings())):
        (note,) = (tmp_path / "serving").iterdir()
        assert "secret" not in note.read_text()
        assert find_place(Settings()).is_here
        monkeypatch.setenv("BOTPOOL_DATABASE_URL", "postgresql://me:secret@db/two")
        with pytest.raises(CommandFailed, match="uses another database"):
            find_place(Settings())


def test_the_admins_key_is_sent_to_no_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin.key").write_text(f"{KEY}\n")
    monkeypatch.setenv("BOTPOOL_URL", f"{URL}/api/v1/")
    with pytest.raises(CommandFailed, match=f"BOTPOOL_API_KEY must be set.* at {URL}") as failed:
        find_place(Settings())
    assert failed.value.code is Exit.KEY
    monkeypatch.setenv("BOTPOOL_API_KEY", "short")
    with pytest.raises(CommandFailed, match="is not a key"):
        find_place(Settings())


@pytest.mark.parametrize("url", ["botpool.example", "ftp://botpool", "http://", "http://a:b"])
def test_an_address_that_is_none_is_exit_code_2(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTPOOL_URL", url)
    with pytest.raises(CommandFailed, match=r"^BOTPOOL_URL must be an http") as failed:
        find_place(Settings())
    assert failed.value.code is Exit.SETUP


def test_a_plain_table_cuts_nothing_and_has_no_escape_codes() -> None:
    url = f"https://teams.microsoft.com/l/meetup-join/{'x' * 300}"
    columns = (Column("id", right=True), Column("status"), Column("meeting", folds=True))
    rows: list[Row] = [("1", Styled("IN_CALL", "bold green"), url), ("10", "a\n\x1b[31mb\x07", "")]
    assert plain_table(columns, rows) == [
        "id  status   meeting",
        f" 1  IN_CALL  {url}",
        "10  a b",
    ]


def test_what_others_wrote_can_not_steer_a_terminal() -> None:
    assert plain("a\x1b]0;title\x07b\r\n c\x9b31m") == "a0;titleb c31m"
    assert without_control("\x1b[1mbold\x1b[0m\ttab") == "bold\ttab"


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], ["a"], ["a"]),
        (["a", "b"], ["a", "b", "c"], ["c"]),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a"], ["x", "y"], ["x", "y"]),
        (["a"], ["a"], []),
    ],
)
def test_a_followed_log_tells_each_line_once(
    before: list[str], now: list[str], new: list[str]
) -> None:
    assert _new_lines(before, now) == new


def test_a_pull_is_a_bar() -> None:
    drawn = [bar(current, 100) for current in (0, 50, 100, 120)]
    assert drawn == ["┄" * 20, "━" * 10 + "┄" * 10, "━" * 20, "━" * 20]
    assert bar(0, 0) == "┄" * 20


@pytest.mark.parametrize(
    ("bot", "said", "code"),
    [
        ({"status": "IN_CALL", "joinedAt": "t"}, "bot 5 is in its call", 0),
        ({"status": "DONE", "joinedAt": "t"}, "bot 5 is done", 0),
        ({"status": "FATAL"}, "bot 5 has failed (crashed): it ended", 10),
        ({"status": "CANCELLED"}, "bot 5 was stopped before it was in its call", 11),
    ],
)
def test_a_wait_ends_by_how_it_went(bot: dict[str, str], said: str, code: int) -> None:
    failure = ("crashed", "it ended") if bot["status"] == "FATAL" else (None, None)
    whole = {
        "id": 5,
        "joinedAt": None,
        "failureCause": failure[0],
        "failureReason": failure[1],
        **bot,
    }
    assert outcome(whole, Until.IN_CALL) == (said, code)


@pytest.mark.parametrize(
    ("url", "without", "password"),
    [
        ("postgresql://me:p%40ss@db:5432/pool", "postgresql://me@db:5432/pool", "p@ss"),
        (
            "postgresql://me@db/pool?sslmode=require",
            "postgresql://me@db/pool?sslmode=require",
            None,
        ),
        ("postgresql://db/pool?user=me&password=p", "postgresql://db/pool?user=me", "p"),
        ("postgresql:///pool?host=%2Frun", "postgresql:///pool?host=%2Frun", None),
    ],
)
def test_psql_gets_the_password_where_nobody_sees_it(
    url: str, without: str, password: str | None
) -> None:
    assert without_password(url) == (without, password)


def _commands(command: Any, context: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None, name
        if hasattr(found, "list_commands"):
            yield from _commands(found, context, f"{path}{name} ")
        else:
            yield f"{path}{name}", found


def test_every_command_has_json_and_is_in_the_order_of_help() -> None:
    root = get_command(app)
    context = root.context_class(root, info_name="botpool")
    assert {*root.list_commands(context)} == root.commands.keys()  # type: ignore[attr-defined]
    without = {
        path
        for path, command in _commands(root, context)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == NO_JSON


def test_names_that_the_command_line_repeats_are_those_of_the_rest() -> None:
    assert [*PlatformName] == [*PLATFORM_NAMES]
    assert PHASES.keys() == {*Phase}
    assert _MENDS.keys() <= {*NeedKind}


def test_commands_that_are_suggested_are_there() -> None:
    root = get_command(app)
    context = root.context_class(root, info_name="botpool")
    known = {path for path, _ in _commands(root, context)}
    sources = (Path(__file__).parents[2] / "src/botpool").rglob("*.py")
    suggested = {
        found
        for path in sources
        for found in re.findall(r"[`\"]botpool ([a-z-]+(?: [a-z-]+)?)\b", path.read_text("utf-8"))
    }
    groups = {name.partition(" ")[0] for name in known if " " in name}
    for each in suggested:
        first = each.partition(" ")[0]
        if first in groups and " " in each:
            assert each in known, each
