"""The commands that ask the API, as an operator runs them beside a real `botpool serve`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command import botpool
from tests.support.server import MEET, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.server import Serve

COMMAND = str(Path(sys.executable).parent / "botpool")
SAMPLE = '{"sample": {"stayMs": 60000}}'
LONG = f"https://teams.microsoft.com/l/meetup-join/19%3ameeting_{'x' * 150}"


@pytest.fixture(scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """The settings of a machine where botpool runs: only its data folder."""
    folder = tmp_path_factory.mktemp("cli")
    async with served(folder, "--stop-bots", max_pool_size="2") as site:
        yield {"data_dir": str(folder)}
        assert await site.ends() == 0


async def ran(here: dict[str, str], *command: str, code: int = 0) -> str:
    """What a command prints. It fails if the exit code is another one."""
    found, output, error = await botpool(*command, **here)
    assert found == code, error
    assert "Traceback" not in error
    return output


async def read(here: dict[str, str], *command: str) -> Any:
    return json.loads(await ran(here, *command, "--json"))


@asynccontextmanager
async def following(
    here: dict[str, str], *command: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that goes on until it is ended."""
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, *command),
        env={
            "PATH": os.environ["PATH"],
            **{f"BOTPOOL_{name.upper()}": value for name, value in here.items()},
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(stream: asyncio.StreamReader | None, *words: str) -> str:
    """The next line that has these words."""
    assert stream is not None
    while True:
        line = (await stream.readline()).decode()
        assert line, f"it ended before it said {words}"
        if all(word in line for word in words):
            return line


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("bots list", {"bots", "nextCursor"}),
        ("pool", {"platforms", "hosts", "replicas", "needs"}),
        ("status", {"platforms", "hosts", "replicas", "needs"}),
        ("queue", {"entries", "nextCursor"}),
        ("slots list", {"slots", "nextCursor"}),
        ("hosts list", {"hosts"}),
        ("replicas", {"replicas"}),
        ("projects list", {"projects"}),
        ("keys list", {"keys"}),
        ("webhooks list", {"webhooks"}),
        ("webhooks deliveries", {"deliveries", "nextCursor"}),
        ("sign-in", {"url", "expiresAt"}),
        ("migrate", {"applied"}),
        ("recover", {"recovered", "failed", "deleted", "skipped", "decisions"}),
    ],
)
async def test_a_command_prints_json_with_the_names_of_the_api(
    here: dict[str, str], command: str, fields: set[str]
) -> None:
    assert (await read(here, *command.split())).keys() == fields


async def test_a_bot_is_created_shown_listed_read_and_stopped(here: dict[str, str]) -> None:
    waited = await ran(here, "bots", "create", MEET, "--wait", "--config", SAMPLE, "--name", "Ada")
    first, *phases, last = waited.splitlines()
    bot_id = first.partition(":")[0].removeprefix("bot ")
    told = [line.split()[0] for line in phases if not line.startswith("  …")]
    assert [name for name in told if name not in {"pulled", "created"}] == [
        *("queued", "started", "claimed", "joined", "in_call"),
    ]
    assert last.startswith(f"bot {bot_id} is in its call, after ")
    shown = await read(here, "bots", "show", bot_id)
    assert (shown["status"], shown["botDisplayName"]) == ("IN_CALL", "Ada")
    page = await read(here, "bots", "list", "--status", "IN_CALL", "--platform", "google-meet")
    assert int(bot_id) in [bot["id"] for bot in page["bots"]]
    assert "IN_CALL" in await ran(here, "bots", "show", bot_id)
    async with following(here, "bots", "logs", bot_id, "--follow") as follower:
        await line_with(follower.stdout, "IN_CALL")
        code, output, error = await botpool("bots", "stop", bot_id, "99999", **here)
        assert code == 7
        assert output.startswith(f"bot {bot_id}: ")
        assert error == "botpool: bot 99999: There is no bot 99999.\n"
        await line_with(follower.stdout, "DONE")
        _, said = await follower.communicate()
        assert (follower.returncode, said.decode()) == (0, f"Bot {bot_id} has ended: DONE.\n")
    again = await ran(here, "bots", "stop", bot_id)
    assert again == f"bot {bot_id}: DONE; it had ended\n"
    logs = await read(here, "bots", "logs", bot_id)
    assert "IN_CALL" in logs["container"]
    assert await ran(here, "bots", "delete", bot_id) == f"deleted bot {bot_id}\n"
    assert await botpool("bots", "show", bot_id, **here) == (
        7,
        "",
        f"botpool: There is no bot {bot_id}.\n",
    )


async def test_a_wait_exits_by_how_it_went(here: dict[str, str]) -> None:
    crash = ("--config", '{"sample": {"behaviour": "crash_on_join"}}', "--max-launch-attempts", "1")
    code, _, error = await botpool("bots", "create", MEET, "--wait", *crash, **here)
    assert code == 10
    sentence, *evidence = error.splitlines()
    assert re.fullmatch(r"botpool: bot \d+ has failed \(crashed\): .* with code 1.*", sentence)
    assert "  crashes on joining" in evidence
    code, _, error = await botpool("bots", "create", MEET, "--wait", "--timeout", "0", **here)
    assert code == 12
    assert "It goes on: stop it with `botpool bots stop" in error
    await ran(here, "pause", "zoom", "--reason", "to test")
    paused = ("bots", "create", "https://zoom.us/j/92345678901", "--until", "ended")
    async with following(here, *paused) as waiting:
        first = await line_with(waiting.stdout, "bot ")
        await line_with(waiting.stdout, "waits for paused", "1st in the queue")
        assert "to test" in await ran(here, "pool")
        bot_id = first.partition(":")[0].removeprefix("bot ")
        assert (await read(here, "queue"))["entries"][0]["botId"] == int(bot_id)
        await ran(here, "bots", "stop", bot_id)
        assert await waiting.wait() == 11
    assert await ran(here, "resume", "zoom") == "zoom launches bots again\n"


async def test_slots_and_hosts_are_shown_by_name_and_drained(here: dict[str, str]) -> None:
    await ran(
        here, "bots", "create", LONG, "--until", "ended", "--config", '{"sample": {"stayMs": 0}}'
    )
    name = "pool-microsoft-teams-001"
    slot = await read(here, "slots", "show", name)
    assert (await read(here, "slots", "show", str(slot["id"])))["slotName"] == name
    assert "nothing to recover" in await ran(here, "slots", "recover", name)
    (host,) = (await read(here, "hosts", "list"))["hosts"]
    for what, drained in (("drain", True), ("undrain", False)):
        await ran(here, "hosts", what, host["engine"], host["host"])
        (now,) = (await read(here, "hosts", "list"))["hosts"]
        assert (now["drainedAt"] is not None) is drained
    assert (await read(here, "slots", "drain", name))["draining"] is True
    assert await botpool("hosts", "drain", "docker", "nowhere", **here) == (
        7,
        "",
        "botpool: There is no host nowhere of the engine docker.\n",
    )
    assert await botpool("slots", "show", "pool-zoom-999", **here) == (
        7,
        "",
        "botpool: There is no slot pool-zoom-999.\n",
    )


async def test_what_is_printed_fits_a_terminal_and_elsewhere_nothing_is_cut(
    here: dict[str, str],
) -> None:
    await ran(here, "bots", "create", LONG)
    output = await ran(here, "bots", "list", "--platform", "teams")
    assert LONG in output
    assert "\x1b" not in output
    for colour in ({}, {"NO_COLOR": "1"}):
        shown = await on_terminal(here, 80, colour, "bots", "list", "--platform", "teams")
        assert ("\x1b[3" in shown or "\x1b[1;3" in shown) is not bool(colour)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in shown.splitlines()]
        # Only what the terminal itself breaks is longer.
        assert {line.strip() for line in lines if len(line) > 80} == {LONG}
        assert "…" not in shown
    screen = await on_terminal(here, 100, {}, "pool", "--watch", until="google-meet")
    assert "Ctrl-C ends it" in screen


async def on_terminal(
    here: dict[str, str], columns: int, more: dict[str, str], *command: str, until: str = ""
) -> str:
    """What a command shows on a terminal; with `until`, up to there and then to Ctrl-C."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, *command),
        env={
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": "40",
            "BOTPOOL_DATA_DIR": here["data_dir"],
            **more,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown, ends_with = "", 0
    try:
        while True:
            try:
                shown += (await asyncio.to_thread(os.read, ours, 10_000)).decode(errors="replace")
            except OSError:  # it has ended
                break
            if until and until in shown:
                process.send_signal(signal.SIGINT)
                until, ends_with = "", 130
        assert await process.wait() == ends_with
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "Traceback" not in shown
    return shown


async def test_psql_opens_the_embedded_database_and_the_one_that_is_set(
    here: dict[str, str], database_url: str, tmp_path: Path
) -> None:
    query = (
        "psql",
        "-At",
        "-c",
        "SELECT current_database(), count(*) FROM schema_migrations WHERE version = 1",
    )
    assert await ran(here, *query) == "botpool|1\n"
    assert re.fullmatch(r"test_\d+\|1\n", await ran({"database_url": database_url}, *query))
    code, _, error = await botpool("psql", "-c", "SELECT 1", data_dir=str(tmp_path / "none"))
    assert code == 2
    assert error.startswith(f"botpool: There is no database in {tmp_path / 'none'} yet")
    code, _, _ = await botpool("psql", "-c", "nonsense", **here)
    assert code == 1


async def test_a_wrong_key_is_exit_code_6(here: dict[str, str]) -> None:
    code, output, error = await botpool("bots", "list", **here, api_key="bp_admin_no-such-key-here")
    assert (code, output) == (6, "")
    assert re.fullmatch(
        r"botpool: The botpool at \S+ doesn't know the key in BOTPOOL_API_KEY\.\n", error
    )


async def test_the_shell_completes_commands_options_and_values() -> None:
    for words, found in (
        ("botpool bo", "bots"),
        ("botpool bots list --pl", "--platform"),
        ("botpool bots list --status IN_", "IN_CALL"),
    ):
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            env={
                "PATH": os.environ["PATH"],
                "_BOTPOOL_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert found in output.decode().split()


async def test_what_watches_lives_through_a_restart_and_ends_with_ctrl_c(folder: Path) -> None:
    here = {"data_dir": str(folder)}
    async with following(here, "bots", "watch") as hasty:
        assert await hasty.wait() == 4  # nothing runs yet
    async with served(folder, "--stop-bots") as site:  # noqa: SIM117 - it has to run first
        async with (
            following(here, "bots", "watch", "--json") as watcher,
            following(here, "pool", "--watch") as pool,
            following(here, "bots", "watch", "--json") as read_once,
        ):
            await line_with(pool.stdout, "google-meet")
            await line_with(watcher.stderr, "Watching")
            await line_with(read_once.stderr, "Watching")
            seen = [await asked_until_seen(site, watcher)]
            assert read_once.stdout is not None
            await read_once.stdout.readline()
            read_once._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
            assert await read_once.wait() == 141
            assert await site.ends() == 0
            code, _, error = await botpool("bots", "list", **here)
            assert (code, error.startswith(f"botpool: No botpool runs in {folder}")) == (4, True)
            async with served(folder, "--stop-bots") as again:
                await line_with(watcher.stderr, "It answers again")
                seen.append(await asked_until_seen(again, watcher))
                await line_with(pool.stdout, "google-meet")
                for process in (watcher, pool):
                    process.send_signal(signal.SIGINT)
                    _, said = await process.communicate()
                    assert process.returncode == 130
                    assert b"Traceback" not in said
                assert await again.ends() == 0
    events = [event for events in seen for event in events]
    assert len({event["id"] for event in events}) == len(events)


async def asked_until_seen(site: Serve, watcher: asyncio.subprocess.Process) -> list[Any]:
    """The events of a new bot until it is done, and of others before it."""
    (created,) = await site.ask(stayMs=0)
    events = []
    while True:
        events.append(json.loads(await line_with(watcher.stdout, "bot.")))
        data = events[-1]["data"]
        if (data["botId"], data.get("status")) == (created["bot"]["id"], "DONE"):
            return events


async def test_a_botpool_that_was_killed_is_told_of_by_its_note(folder: Path) -> None:
    async with served(folder) as site:
        pid = site.process.pid
        site.process.kill()
        await site.process.wait()
        code, _, error = await botpool("bots", "list", data_dir=str(folder))
        assert code == 4
        assert f"No botpool runs in {folder} any more: process {pid}, which listened on" in error
        # What needs no server is answered by the database.
        code, output, _ = await botpool("status", data_dir=str(folder))
        assert code == 0
        assert "microsoft-teams" in output
