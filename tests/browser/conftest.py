"""A real browser that looks at a real `botpool serve`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import async_playwright, expect

from tests.browser.visitor import FLAGS, visiting
from tests.support.server import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from tests.browser.visitor import Visitor
    from tests.support.server import Serve

# A signal comes within this, also on a slow machine.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium fonts-dejavu-core")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
async def serve(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serve]:
    """A botpool for all tests of a file. Its bots stop with it."""
    folder = tmp_path_factory.mktemp("botpool")
    async with served(folder, "--stop-bots", max_pool_size="4", leave_grace_ms="500") as serve:
        yield serve
        await serve.ends()


@pytest.fixture
async def visitor(browser: Browser, serve: Serve) -> AsyncIterator[Visitor]:
    """An admin who has opened the dashboard. Whatever is wrong in the console fails the test."""
    async with visiting(browser, serve) as visitor:
        yield visitor
