"""Who calls: a key in a header, or a browser that signed in with one.

A browser keeps a cookie that is not its key. Other sites can make a browser send it, so a request
that changes something must show that it comes from ours.
"""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from botpool.access import SIGN_IN_LIFETIME, Access
from botpool.api.dependencies import TheAccess
from botpool.api.limits import RateLimits
from botpool.errors import Forbidden, Unauthorized
from botpool.models import ApiKey
from botpool.states import Role

COOKIE = "botpool"

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool.api")

_CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})
# What tells the key, or could be shown again to who has signed out, is kept by nobody.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="apiKey",
    description="A key that `botpool keys create` has shown.",
)
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="browser",
    description="What `/sign-in` gives to a browser. What changes something needs `X-Botpool: 1`.",
)

# Not a part of the API: it is for browsers alone.
router = APIRouter(include_in_schema=False)


async def _limits_of(request: Request) -> RateLimits:
    limits: RateLimits = request.app.state.limits
    return limits


TheLimits = Annotated[RateLimits, Depends(_limits_of)]


async def caller(
    request: Request,
    access: TheAccess,
    limits: TheLimits,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    cookie: Annotated[str | None, Depends(_cookie)],
) -> ApiKey:
    """The key of whoever calls. Raises `Unauthorized`, `Forbidden` or `TooManyRequests`.

    A key in the header counts alone, whatever cookie comes with it.
    """
    key = await _authenticate(access, bearer, cookie)
    if key is None:
        raise Unauthorized("The request has no key that opens this.")
    # A forged request must not use up what its victim may do.
    if bearer is None:
        _refuse_forgery(request)
    limits.take(key)
    return key


TheCaller = Annotated[ApiKey, Depends(caller)]


def admin(key: TheCaller) -> ApiKey:
    """The key of an admin who calls. Raises what `caller` does, and `Forbidden` for a client."""
    if key.role is not Role.ADMIN:
        raise Forbidden("This takes the key of an admin.")
    return key


TheAdmin = Annotated[ApiKey, Depends(admin)]


def sign_in_path(key: str) -> str:
    """What a browser opens to be signed in with this key."""
    return f"/sign-in?key={quote(key, safe='')}"


@router.get("/sign-in")
async def sign_in(
    request: Request, access: TheAccess, limits: TheLimits, key: Annotated[str, Query()] = ""
) -> RedirectResponse:
    """Let a browser in with a key, which is not seen again, and show it the dashboard."""
    # The server's log of requests is written later, and tells what it finds here.
    request.scope["query_string"] = b""
    signed = await access.sign_in(key)
    if signed is None:
        raise Unauthorized("The link that signs in has no key that opens anything.")
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
    """Let a browser forget that it is signed in."""
    _refuse_forgery(request)
    response = _redirect()
    response.delete_cookie(
        COOKIE, secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return response


async def _authenticate(
    access: Access, bearer: HTTPAuthorizationCredentials | None, cookie: str | None
) -> ApiKey | None:
    if bearer is not None:
        return await access.authenticate(bearer.credentials)
    return await access.authenticate_browser(cookie) if cookie else None


def _refuse_forgery(request: Request) -> None:
    """Raise `Forbidden` if a request changes something and another site may have sent it."""
    if request.method in _CHANGES_NOTHING:
        return
    headers = request.headers
    ours = f"{request.url.scheme}://{headers.get('host')}"
    # Another site's page can set none of the three: for the first, it would have to be let by us.
    if (
        headers.get("x-botpool") != "1"
        and headers.get("sec-fetch-site") != "same-origin"
        and headers.get("origin") != ours
    ):
        raise Forbidden("A browser's request that changes something needs `X-Botpool: 1`.")


def _redirect() -> RedirectResponse:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, headers=_PRIVATE)
