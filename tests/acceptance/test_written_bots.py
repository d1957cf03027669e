"""The bots that `docs/how-to/write-a-bot.md` shows, as they stand there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.server import BOTS, served

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-bot.md"
PROGRAMS = {
    "python": (sys.executable, r"^```python\n(.*?)^```"),
    "plain HTTP": ("sh", r"^```sh\n(#!/bin/sh\n.*?)^```"),
}


@pytest.mark.parametrize("language", PROGRAMS)
async def test_a_bot_of_the_docs_is_in_its_call_until_it_is_stopped(
    folder: Path, language: str
) -> None:
    interpreter, block = PROGRAMS[language]
    (program,) = re.findall(block, PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    file = folder / "a bot"
    file.write_text(program, encoding="utf-8")
    async with served(folder, process_command=shlex.join([interpreter, str(file)])) as botpool:
        await botpool.ask()
        await botpool.until("IN_CALL")
        await botpool.client.post(f"{BOTS}/1/stop")
        assert await botpool.until("DONE", "FATAL", "CANCELLED") == {"DONE": 1}
        bot = (await botpool.client.get(f"{BOTS}/1")).json()
        assert bot["failureReason"] is None
        logs = (await botpool.client.get(f"{BOTS}/1/logs")).json()
        assert [line["line"] for line in logs["lines"]] in (["recording"], ["hello from a shell"])
        assert await botpool.ends() == 0
