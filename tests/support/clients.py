"""What tests run in Node, and with generated clients, if it is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

TOOLS = Path(os.environ.get("BOTPOOL_TEST_CLIENTS") or _CACHE / "botpool-test-clients")
"""Where tests/clients/install has put it."""

needs_clients = pytest.mark.skipif(
    not (TOOLS / "installed").exists() or shutil.which("node") is None,
    reason="generators of clients are missing: install nodejs and npm, and run"
    " tests/clients/install",
)
