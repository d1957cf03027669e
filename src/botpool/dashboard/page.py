"""How a page is made, and what a browser is told that asks for one in vain."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, quote, unquote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from botpool import __version__
from botpool.api.auth import KeyRoute
from botpool.api.policy import policy
from botpool.dashboard import words
from botpool.dashboard.assets import asset
from botpool.errors import (
    BotpoolError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Refused,
    TooManyRequests,
    Unauthorized,
)
from botpool.states import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import datetime

    from fastapi.responses import Response

    from botpool.feed.stream import Feed
    from botpool.models.keys import ApiKey

_POLICY = policy(script="'self'", style="'self'", img="'self'", connect="'self'", form="'self'")
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    # A page must not be shown after signing out, and our own forms must be known as ours.
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Cookie, X-Botpool-Part",
}

_PAUSE_MS_A_READER = 40
"""So that fifty open pages ask no more than 25 times a second together."""

_SAID = "botpool_said"
"""The cookie with what a form did. The next page says it, once."""
_SAID_SECONDS = 30
_LONGEST_SAID = 500

_STATUSES: tuple[tuple[type[BotpoolError], HTTPStatus], ...] = (
    (Unauthorized, HTTPStatus.UNAUTHORIZED),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (TooManyRequests, HTTPStatus.TOO_MANY_REQUESTS),
    (InvalidRequest, HTTPStatus.UNPROCESSABLE_ENTITY),
    (Refused, HTTPStatus.CONFLICT),
)

_templates = Environment(
    loader=PackageLoader("botpool.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(asset=asset, version=__version__, words=words)
_templates.filters.update(words.FILTERS)


def page(
    request: Request,
    template: str,
    caller: ApiKey,
    now: datetime,
    *,
    status: HTTPStatus = HTTPStatus.OK,
    **shown: Any,
) -> HTMLResponse:
    """A page for the caller, or, if our script asks for that, only the part that can change."""
    said = unquote(request.cookies.get(_SAID, ""))
    text = rendered(template, caller, now, part=is_part(request), said=said, **shown)
    response = HTMLResponse(text, status, headers=_HEADERS | _pace(request))
    if said:
        response.delete_cookie(_SAID)
    return response


def rendered(
    template: str,
    caller: ApiKey,
    now: datetime,
    *,
    part: bool,
    said: str = "",
    here: str = "",
    **shown: Any,
) -> str:
    """The text of a page. `here` is where it is got, if it is the answer to a form."""
    return _templates.get_template(template).render(
        caller=caller,
        now=now,
        part=part,
        said=said,
        here=here,
        may_change=caller.role is not Role.VIEWER,
        sees_all=caller.project_id is None,
        **shown,
    )


def answered(request: Request, text: str) -> HTMLResponse:
    """A page whose text is made."""
    return HTMLResponse(text, headers=_HEADERS | _pace(request))


def _pace(request: Request) -> dict[str, str]:
    """How long an open page waits before it asks again: all of them together ask only so often."""
    feed: Feed | None = request.app.state.feed
    readers = 0 if feed is None else feed.subscriptions
    return {"X-Botpool-Pause": str(readers * _PAUSE_MS_A_READER)}


def is_part(request: Request) -> bool:
    """Whether our script asks, which needs only the part of a page that can change."""
    return request.headers.get("x-botpool-part") == "1"


def back(to: str, said: str) -> RedirectResponse:
    """After a form: go to a page of ours, which says what was done."""
    response = RedirectResponse(to, HTTPStatus.SEE_OTHER, headers={"Cache-Control": "no-store"})
    text = quote(said[:_LONGEST_SAID])
    response.set_cookie(_SAID, text, max_age=_SAID_SECONDS, httponly=True, samesite="strict")
    return response


class PageRoute(KeyRoute):
    """A route whose errors are pages, for people: what is wrong, and what to do."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, with its errors answered."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError:
                return _failed(HTTPStatus.UNPROCESSABLE_ENTITY, "This address has a wrong value.")
            except BotpoolError as error:
                for kind, status in _STATUSES:
                    if isinstance(error, kind):
                        return _failed(status, str(error))
                raise

        return handled


def _failed(status: HTTPStatus, why: str) -> HTMLResponse:
    name = "sign_in.html" if status is HTTPStatus.UNAUTHORIZED else "failed.html"
    text = _templates.get_template(name).render(status=status, why=why, said="", part=False)
    return HTMLResponse(text, status, headers=_HEADERS)


class Form:
    """The fields of a form that was sent."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """The text of a field, without space around it."""
        return self._fields.get(name, [default])[0].strip()

    def every(self, name: str) -> list[str]:
        """All values of a field."""
        return self._fields.get(name, [])

    def number(self, name: str, default: int) -> int:
        """A whole number. Raises `InvalidRequest`."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004
            raise InvalidRequest(f"{name} must be a whole number.")
        return int(text)


async def form_of(request: Request) -> Form:
    """The form that a browser sent."""
    text = (await request.body()).decode(errors="replace")
    return Form(parse_qs(text, keep_blank_values=True))


TheForm = Annotated[Form, Depends(form_of)]
