"""The caller's identity: a key in a header, or a browser that signed in with one.

A browser keeps a cookie in place of the key. Other sites can make a browser send that cookie, so a
request that changes something must show that it comes from our pages.
"""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from botpool.access.keys import Keys
from botpool.access.limits import RateLimits
from botpool.access.sessions import SIGN_IN_LIFETIME, Sessions
from botpool.api.dependencies import TheKeys, TheSessions
from botpool.errors import Forbidden, Unauthorized
from botpool.models.keys import ApiKey
from botpool.states import Role

COOKIE = "botpool"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool.api")

_CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSIONS = "/api/v1/sessions"
# These answers contain the key, or a page that must not be shown after signing out: no cache may
# keep them.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="apiKey",
    description="An API key, as `botpool keys create` prints it.",
)
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="browser",
    description="The cookie that `/sign-in` sets in a browser. A request that changes something"
    " also needs the header `X-Botpool: 1`.",
)

# Not part of the API: only browsers use it.
router = APIRouter(include_in_schema=False)


async def _limits_of(request: Request) -> RateLimits:
    limits: RateLimits = request.app.state.limits
    return limits


TheLimits = Annotated[RateLimits, Depends(_limits_of)]


async def caller(
    request: Request,
    keys: TheKeys,
    sessions: TheSessions,
    limits: TheLimits,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> ApiKey:
    """The key of the caller. Raises `Unauthorized`, `Forbidden` or `TooManyRequests`.

    If there is a key in the header, the cookie is ignored.
    """
    key = await _authenticate(keys, sessions, bearer, cookie)
    if key is None:
        raise Unauthorized("The request has no valid API key.")
    # Checked first: a forged request must not use up its victim's rate limit.
    if bearer is None:
        _refuse_forgery(request)
    limits.take(key)
    refuse_change(request, key)
    return key


TheCaller = Annotated[ApiKey, Depends(caller)]


def refuse_change(request: Request, key: ApiKey) -> None:
    """Raise `Forbidden` if a viewer's request changes something, other than its own sessions."""
    changes = request.method not in _CHANGES_NOTHING
    if key.role is Role.VIEWER and changes and not request.url.path.startswith(_SESSIONS):
        raise Forbidden("A viewer's key changes nothing.")


def admin(key: TheCaller) -> ApiKey:
    """The caller's key, if it is an admin's, or a viewer's that only looks.

    Raises what `caller` raises, and `Forbidden`.
    """
    if key.role is Role.CLIENT:
        raise Forbidden("Only an admin's key may do this.")
    return key


TheAdmin = Annotated[ApiKey, Depends(admin)]


def sign_in_path(key: str) -> str:
    """The path that signs a browser in with this key."""
    return f"/sign-in?key={quote(key, safe='')}"


@router.get("/sign-in")
async def sign_in(
    request: Request, sessions: TheSessions, limits: TheLimits, key: Annotated[str, Query()] = ""
) -> RedirectResponse:
    """Sign a browser in with a key, and redirect it to the dashboard, without the key."""
    # The server logs the request later, from this scope: the key must not be in it.
    request.scope["query_string"] = b""
    signed = await sessions.sign_in(key)
    if signed is None:
        raise Unauthorized("The sign-in link has no valid API key.")
    found, kept = signed
    limits.take(found)
    _log.info("browser signed in", key_id=found.id, key_name=found.name)
    response = _redirect()
    response.set_cookie(
        COOKIE,
        kept,
        max_age=int(SIGN_IN_LIFETIME.total_seconds()),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> RedirectResponse:
    """Sign a browser out."""
    _refuse_forgery(request)
    response = _redirect()
    response.delete_cookie(
        COOKIE, secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return response


async def _authenticate(
    keys: Keys,
    sessions: Sessions,
    bearer: HTTPAuthorizationCredentials | None,
    cookie: str | None,
) -> ApiKey | None:
    if bearer is not None:
        return await keys.authenticate(bearer.credentials)
    return await sessions.authenticate(cookie) if cookie else None


def _refuse_forgery(request: Request) -> None:
    """Raise `Forbidden` if a request changes something and another site may have sent it."""
    if request.method in _CHANGES_NOTHING:
        return
    headers = request.headers
    ours = f"{request.url.scheme}://{headers.get('host')}"
    # A page of another site can set none of the three; the first one only if we allowed it to.
    if (
        headers.get("x-botpool") != "1"
        and headers.get("sec-fetch-site") != "same-origin"
        and headers.get("origin") != ours
    ):
        raise Forbidden("A browser's request that changes something needs `X-Botpool: 1`.")


def _redirect() -> RedirectResponse:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, headers=_PRIVATE)
