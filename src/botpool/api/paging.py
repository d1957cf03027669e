"""Lists in pages: the cursor of a page is the place of its last row in the order of the list."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Query

from botpool.errors import InvalidCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = TypeVar("Row")

Cursor = Annotated[str | None, Query(description="The `nextCursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200, description="The most rows that a page has.")]


def page_of(
    found: Sequence[Row], limit: int, place: Callable[[Row], tuple[object, ...]]
) -> tuple[Sequence[Row], str | None]:
    """The first `limit` rows, and the cursor of the next page if more were found."""
    page = found[:limit]
    return page, cursor_of(place(page[-1])) if len(found) > limit else None


def place_of(cursor: str, *kinds: Callable[[str], Any]) -> tuple[Any, ...]:
    """The place that a cursor stands for, of which each part is of its kind.

    A kind raises `ValueError` for a text that it can't be made of. Raises `InvalidCursor`.
    """
    try:
        text = base64.urlsafe_b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}").decode()
        return tuple(kind(part) for kind, part in zip(kinds, text.split(","), strict=True))
    except ValueError as error:
        raise InvalidCursor from error


def cursor_of(place: tuple[object, ...]) -> str:
    """The cursor of the page that begins after a place."""
    text = ",".join(map(str, place))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def whole_number(text: str) -> int:
    """A number that the database can store. Raises `ValueError`."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise ValueError("out of range")
    return number
