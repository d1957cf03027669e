"""Conditions on bots' metadata in the query of a list: `metadata.team=sales`."""

import re
from typing import Any

import orjson
from fastapi import Request

from botpool.api.wire import is_text
from botpool.errors import InvalidRequest
from botpool.models.json import Json

Metadata = list[tuple[Json, Json]]
"""For each condition two values, of which a bot's metadata has to contain one."""

METADATA_PARAMETER: dict[str, Any] = {
    "name": "metadata",
    "in": "query",
    "required": False,
    "style": "deepObject",
    "explode": True,
    "description": "Only bots whose metadata has all of these: `metadata.team=sales`, or"
    " `metadata[team]=sales`. A number, true, false and null also match as such. At most 10.",
    "schema": {"type": "object", "maxProperties": 10, "additionalProperties": {"type": "string"}},
}

_MOST = 10
_NAMED = re.compile(r"metadata(?:\.(?P<plain>.+)|\[(?P<deep>[^]]+)\])", re.DOTALL)


async def metadata_asked(request: Request) -> Metadata:
    """The conditions in a request's query. Raises `InvalidRequest`."""
    asked = [
        (match["plain"] or match["deep"], value)
        for name, value in request.query_params.multi_items()
        if (match := _NAMED.fullmatch(name))
    ]
    if len(asked) > _MOST:
        raise InvalidRequest(f"metadata: there may be at most {_MOST} conditions.")
    if not all(is_text(text) for condition in asked for text in condition):
        raise InvalidRequest("metadata: must not contain NUL.")
    return [({key: value}, {key: _value(value)}) for key, value in asked]


def _value(text: str) -> object:
    """What a text is if it is not a text: a number, true, false or null."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(value, dict | list) else value
