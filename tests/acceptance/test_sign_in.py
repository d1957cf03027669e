"""How an operator signs a browser in, and that no key is printed on the way."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.command import botpool as command
from tests.support.server import served

SESSIONS = "/api/v1/sessions"
GIVEN = "a-key-that-an-operator-thought-up"
ONCE = "It works once, within 10 minutes.\n"


async def signs_in(link: str) -> bool:
    """Whether a link signs a browser in as somebody who may see every slot."""
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(link)
        url = link.partition("/sign-in")[0]
        slots = await browser.get(f"{url}/api/v1/slots")
    assert (answer.status_code, slots.status_code) in {(303, 200), (401, 401)}
    return answer.status_code == 303


async def test_what_is_not_a_terminal_is_told_where_the_key_is(folder: Path) -> None:
    async with served(folder) as botpool:
        file = folder / "admin.key"
        assert botpool.said[1] == (f"the admin's key is in {file}; `botpool sign-in` prints a link")
        assert await botpool.ends() == 0
    assert "code=" not in "\n".join(botpool.said)
    assert botpool.key not in "\n".join(botpool.said) + botpool.log.read_text()


async def test_a_key_that_was_set_is_called_by_the_settings_name(folder: Path) -> None:
    (folder / "admin.key").write_text(GIVEN)  # only the test reads it
    async with served(folder, admin_key=GIVEN) as botpool:
        assert botpool.said[1] == (
            "the admin's key is the one in BOTPOOL_ADMIN_KEY; `botpool sign-in` prints a link"
        )
        assert (await botpool.client.get("/api/v1/slots")).status_code == 200
        assert await botpool.ends() == 0
    assert GIVEN not in "\n".join(botpool.said) + botpool.log.read_text()


@pytest.mark.parametrize("given", [None, GIVEN])
async def test_a_terminal_shows_a_link_that_works_once(folder: Path, given: str | None) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), "serve"),
        env={
            "PATH": os.environ["PATH"],
            "BOTPOOL_DATA_DIR": str(folder),
            "BOTPOOL_PORT": "0",
            **({"BOTPOOL_ADMIN_KEY": given} if given else {}),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=theirs,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(theirs)
    try:
        said = ""
        while "/docs" not in said:
            said += (await asyncio.to_thread(os.read, ours, 10_000)).decode()
        found = re.search(r"sign in:  (http://127\.0\.0\.1:\d+/sign-in\?code=\S+)\r\n", said)
        assert found, said
        assert [await signs_in(found[1]), await signs_in(found[1])] == [True, False]
        key = given or (folder / "admin.key").read_text().strip()
        assert key not in said
        process.terminate()
        assert await process.wait() == 0
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_command_prints_a_link_where_botpool_runs_and_from_elsewhere(folder: Path) -> None:
    async with served(folder) as botpool:
        url = str(botpool.client.base_url).rstrip("/")
        here = {"data_dir": str(folder), "port": str(botpool.client.base_url.port)}
        code, link, hint = await command("sign-in", **here)
        assert (code, hint) == (0, ONCE)
        assert link.startswith(f"{url}/sign-in?code=")
        assert [await signs_in(link.strip()) for _ in range(2)] == [True, False]
        # From elsewhere there is no data folder, and so no key but the one that is given.
        elsewhere = {"data_dir": str(folder / "empty"), "url": url}
        code, link, hint = await command("sign-in", **elsewhere, api_key=botpool.key)
        assert (code, hint) == (0, ONCE)
        assert await signs_in(link.strip())
        assert await command("sign-in", **elsewhere, api_key=GIVEN) == (
            6,
            "",
            f"botpool: The botpool at {url} doesn't know the key in BOTPOOL_API_KEY.\n",
        )
        sessions = (await botpool.client.get(SESSIONS)).json()["sessions"]
        assert [session["keyName"] for session in sessions] == ["admin", "admin"]
        assert await botpool.ends() == 0
    assert await command("sign-in", **elsewhere, api_key=botpool.key) == (
        4,
        "",
        f"botpool: Nothing answers at {url}: Connection refused; check BOTPOOL_URL.\n",
    )
    assert not (folder / "empty").exists()


async def test_a_link_to_nothing_that_runs_says_so(database_url: str, tmp_path: Path) -> None:
    settings = {"database_url": database_url, "data_dir": str(tmp_path)}
    code, link, hint = await command("sign-in", **settings)
    assert (code, link.partition("=")[0]) == (0, "http://127.0.0.1:8000/sign-in?code")
    assert hint == f"No API runs on this database: run `botpool serve`.\n{ONCE}"
