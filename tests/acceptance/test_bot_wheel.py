"""The SDK as a wheel of its own: a bot runs with it, where nothing else is installed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import botpool
from tests.support.server import BOTS, ENDED, MEET, served

SDK = Path(__file__).parents[2] / "bot-sdk"

BOT = """
import asyncio
from botpool.bot import Status, claim, wait_to_be_stopped

async def main():
    async with claim() as bot:
        await bot.status(Status.IN_CALL)
        await bot.event("participant.joined", {"name": "A guest"})
        await bot.log("in the call, with 'quotes'")
        await bot.leave_requested()
    await wait_to_be_stopped()

asyncio.run(main())
"""


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the SDK, and nothing else, not even pip."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=SDK)
    (wheel,) = folder.glob("botpool_bot-*.whl")
    assert wheel.name == f"botpool_bot-{botpool.__version__}-py3-none-any.whl"
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", wheel, folder=folder)
    found = run(*pip, "list", "--format", "freeze", folder=folder)
    assert found.split() == [f"botpool-bot=={botpool.__version__}"]
    return python


async def test_a_bot_runs_with_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    """It reports events and log lines, and is told to leave long before its next heartbeat."""
    program = tmp_path / "a bot.py"
    program.write_text(BOT)
    data = tmp_path / "data"
    data.mkdir()
    async with served(
        data,
        "--stop-bots",
        process_command=f"{python} '{program}'",
        heartbeat_interval_ms="60000",
    ) as serve:
        created = await serve.client.post(BOTS, json={"meetingUrl": MEET})
        path = f"{BOTS}/{created.json()['bot']['id']}"
        while not (logs := (await serve.client.get(f"{path}/logs")).json())["lines"]:
            assert (await serve.client.get(path)).json()["endedAt"] is None
        assert [line["line"] for line in logs["lines"]] == ["in the call, with 'quotes'"]
        events = (await serve.client.get(f"{path}/timeline")).json()["events"]
        (told,) = [event for event in events if event["type"] == "bot.event"]
        assert told["data"]["event"]["data"] == {"name": "A guest"}
        await serve.client.post(f"{path}/stop")
        # Forced, it would take 30 seconds, and say so.
        assert await serve.until(*ENDED) == {"DONE": 1}
        events = (await serve.client.get(f"{path}/timeline")).json()["events"]
        (ended,) = [event for event in events if event["data"].get("status") == "DONE"]
        assert ended["data"]["reason"] == "the bot says so"
        assert await serve.ends() == 0


def test_the_sample_bot_is_in_it(python: Path, tmp_path: Path) -> None:
    said = run(python, "-c", "import botpool.bot.sample as s; print(s.__doc__)", folder=tmp_path)
    assert "The sample bot" in said
