"""The named queries and the methods that run them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from botpool.store.queries import QUERIES
from botpool.store.store import Store

ROOT = Path(__file__).parents[2]


def test_every_query_has_its_method_and_is_used() -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction)}
    sources = (inspect.getsource(cls) for cls in Store.__mro__[:-1])
    used = set(re.findall(r'"(\w+)"', "".join(sources)))
    assert set(QUERIES) <= methods
    assert set(QUERIES) <= used


def test_no_query_asks_the_clock_past_the_function_that_tests_set() -> None:
    folder = ROOT / "src" / "botpool" / "store"
    asking = re.compile(r"\b(now\(\)|current_timestamp|clock_timestamp\(\))", re.IGNORECASE)
    found = {
        (path.name, line.strip())
        for path in [*folder.glob("sql/*.sql"), *folder.glob("functions/*.sql")]
        for line in path.read_text("utf-8").splitlines()
        if asking.search(line.replace("botpool_now()", ""))
    }
    assert {name for name, _ in found} <= {"clock.sql"}
