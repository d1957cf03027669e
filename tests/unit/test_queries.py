"""The named queries and the methods that run them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import cast

import pytest

from botpool.store import Database, Store, invariants
from botpool.store.queries import named_queries

FOLDER = Path(inspect.getfile(invariants)).parent
NOUNS = sorted(path.stem for path in FOLDER.glob("*.sql"))
PARTS = vars(Store(cast("Database", None)))


def test_every_part_of_the_store_has_its_queries() -> None:
    assert {*NOUNS} == {*PARTS, "invariants"}


@pytest.mark.parametrize("noun", NOUNS)
def test_every_query_has_its_method_and_is_used(noun: str) -> None:
    queries = {*named_queries(noun)}
    source = (FOLDER / f"{noun}.py").read_text("utf-8")
    asked = {*re.findall(r'(?:_queries|"\))\.\w+\(\s*"(\w+)"', source)}
    asked |= {*re.findall(r'self\._bot\("(\w+)"', source)}
    assert asked == queries
    if noun in PARTS:
        # `import` is a word of Python's.
        assert queries <= {name.rstrip("_") for name in dir(PARTS[noun])}


def test_no_query_asks_the_clock_past_the_function_that_tests_set() -> None:
    asking = re.compile(r"\b(now\(\)|current_timestamp|clock_timestamp\(\))", re.IGNORECASE)
    paths = [*FOLDER.glob("*.sql"), *FOLDER.glob("schema/functions/*.sql")]
    assert {"bots.sql", "triggers.sql"} <= {path.name for path in paths}
    found = {
        (path.name, line.strip())
        for path in paths
        for line in path.read_text("utf-8").splitlines()
        if asking.search(line.replace("botpool_now()", ""))
    }
    # Where the clock that tests set begins, and where the server's own one is compared with ours.
    assert {name for name, _ in found} <= {"installation.sql", "server.sql"}
