"""The named queries of sql/, read once when this module is imported.

A query starts with `-- name: its_name` and at least one comment line that says what it does.
"""

from __future__ import annotations

import re
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMED = re.compile(
    r"^-- name: (?P<name>\w+)\n(?P<doc>(?:-- .+\n)+)(?P<sql>(?:(?!-- name:).*\n?)*)", re.MULTILINE
)


def _parse(text: str) -> Iterator[tuple[str, str]]:
    for match in _NAMED.finditer(text):
        yield match["name"], match["sql"].strip().rstrip(";")


def _load() -> Mapping[str, str]:
    queries: dict[str, str] = {}
    for file in sorted(
        resources.files(__package__).joinpath("sql").iterdir(), key=lambda f: f.name
    ):
        text = file.read_text(encoding="utf-8")
        found = dict(_parse(text))
        if len(found) != text.count("-- name:") or found.keys() & queries.keys():
            raise ValueError(f"{file.name}: a query without a purpose, or with a name used twice")
        queries.update(found)
    return MappingProxyType(queries)


QUERIES: Mapping[str, str] = _load()
"""SQL by name."""
