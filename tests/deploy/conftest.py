"""A data folder for a botpool of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A data folder. Bots that still run in it are ended with the test."""
    yield tmp_path
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME", "").startswith(str(tmp_path)):
                process.kill()
        except psutil.Error:
            continue
