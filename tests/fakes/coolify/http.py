"""What a call is, and how Laravel answers one that goes wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from tests.fakes.coolify import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response


@dataclass
class Call:
    """A request, as its handler sees it."""

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    parameters: dict[str, str] = field(default_factory=dict)
    """From the path."""

    def given(self, name: str, default: Any = None) -> Any:
        """From the body, or else the query."""
        return self.body.get(name, self.query.get(name, default))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """What is given, as Laravel reads booleans."""
        return checks.boolean(self.given(name, default))


class Refused(Exception):
    """A controller's answer, in JSON whatever the client accepts."""

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {**more, "message": message}
        self.headers = dict(headers or {})

    def answer(self) -> Response:
        """What is sent."""
        return JSONResponse(self.body, self.status, self.headers)


class FrameworkError(Exception):
    """Laravel's own answer: for a client that accepts no JSON, a page, or a way to log in."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})

    def answer(self, *, accepts_json: bool) -> Response:
        """What is sent."""
        if accepts_json:
            return JSONResponse({"message": self.message}, self.status, self.headers)
        if self.status == 401:
            return RedirectResponse("/login", 302)
        page = f"<!DOCTYPE html><html><title>{self.message}</title><h1>{self.status}</h1></html>"
        return HTMLResponse(page, self.status, self.headers)


def read_json(body: bytes) -> dict[str, Any]:
    """A body's fields; one that is no JSON object has none."""
    try:
        read = json.loads(body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def invalid(errors: checks.Errors) -> Refused:
    """422, with what is wrong."""
    return Refused(422, "Validation failed.", errors=errors)
