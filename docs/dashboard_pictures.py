"""Pictures of the dashboard, light and dark, taken from a `botpool demo` that runs for them."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from playwright.async_api import async_playwright

from docs.pages import FOLDER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SIZE = {"width": 1280, "height": 860}
_QUALITY = 80


async def take() -> None:
    """Take both of one moment in which bots run on every platform, and some wait."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs a browser: apt-get install chromium fonts-dejavu-core")
    async with _demo() as (link, client), async_playwright() as playwright:
        await _until_busy(client)
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--hide-scrollbars"]
        )
        page = await browser.new_page(viewport=_SIZE)  # type: ignore[arg-type]
        await page.goto(link)
        devtools = await page.context.new_cdp_session(page)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            shot = await devtools.send(
                "Page.captureScreenshot", {"format": "webp", "quality": _QUALITY}
            )
            path = FOLDER / "pictures" / f"dashboard-{scheme}.webp"
            path.write_bytes(base64.b64decode(shot["data"]))
        await browser.close()


@asynccontextmanager
async def _demo() -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """A demo: the link to its dashboard, and a client with the admin's key."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from botpool.cli import main; main()", "demo", "--no-browser"),
            env={"PATH": os.environ["PATH"], "TMPDIR": folder},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            told = await _told(process)
            made = Path(told["its files and its log"])
            key = (made / "admin.key").read_text().strip()
            async with httpx.AsyncClient(
                base_url=told["the API"].removesuffix("/docs"),
                headers={"Authorization": f"Bearer {key}"},
                timeout=30,
            ) as client:
                yield told["the dashboard, signed in"], client
        finally:
            process.send_signal(signal.SIGINT)
            await process.communicate()


async def _told(process: asyncio.subprocess.Process) -> dict[str, str]:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    told = {}
    while line := (await process.stdout.readline()).decode().rstrip("\n"):
        name, found, value = line.partition(":  ")
        if found:
            told[name] = value.strip()
    return told


async def _until_busy(client: httpx.AsyncClient) -> None:
    while True:
        pools: list[dict[str, Any]] = (await client.get("/api/v1/pool")).json()["platforms"]
        if all(pool["busy"] for pool in pools) and any(pool["queued"] for pool in pools):
            return
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(take())
