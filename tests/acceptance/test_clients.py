"""Clients that generators make from the OpenAPI document work, and none has a complaint."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import TOOLS, needs_clients
from tests.support.server import MEET, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.server import Serve

HERE = Path(__file__).parent.parent / "clients"

pytestmark = needs_clients

# What both callers tell of the bot that they created, and of the error that they got.
TOLD = {
    "meetingUrl": MEET,
    "known": True,
    "code": "meeting_url_unknown",
    "pointer": "#/meetingUrl",
}


@pytest.fixture(scope="module")
async def botpool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serve]:
    folder = tmp_path_factory.mktemp("clients")
    async with served(
        folder, "--stop-bots", process_command="sleep 3600", leave_grace_ms="1000"
    ) as botpool:
        yield botpool
        assert await botpool.ends() == 0


async def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a program prints. It fails if the program does."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **environment},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def document(botpool: Serve, folder: Path) -> Path:
    path = folder / "openapi.json"
    path.write_text((await botpool.client.get("/openapi.json")).text)
    return path


def address(botpool: Serve) -> tuple[str, str]:
    return str(botpool.client.base_url).rstrip("/"), botpool.key


def last_line(said: str) -> Any:
    return json.loads(said.splitlines()[-1])


async def test_a_client_in_python(botpool: Serve, tmp_path: Path) -> None:
    programs = TOOLS / "venv" / "bin"
    said = await run(
        tmp_path,
        *(programs / "openapi-python-client", "generate", "--meta", "none"),
        *("--path", await document(botpool, tmp_path), "--output-path", tmp_path / "made"),
        PATH=f"{programs}:{os.environ['PATH']}",
    )
    # It would leave out what it warns of.
    assert said.split() == ["Generating", str(tmp_path / "made")]
    told = await run(
        tmp_path,
        *(programs / "python", HERE / "client.py", *address(botpool)),
        PYTHONPATH=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert last_line(told) == TOLD


async def test_a_client_in_typescript(botpool: Serve, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(TOOLS / "node_modules")
    for name in ("package.json", "client.ts"):
        shutil.copy(HERE / name, tmp_path)
    programs = tmp_path / "node_modules" / ".bin"
    await run(
        tmp_path,
        *(programs / "openapi-typescript", await document(botpool, tmp_path)),
        *("-o", "schema.d.ts"),
    )
    # Its types are checked, too: what the document leaves open would not compile.
    await run(
        tmp_path,
        *(programs / "tsc", "--strict", "--noUncheckedIndexedAccess", "--module", "nodenext"),
        *("--target", "es2022", "--lib", "es2022,dom", "--outDir", "out", "client.ts"),
    )
    told = await run(tmp_path, "node", "out/client.js", *address(botpool))
    assert last_line(told) == TOLD
