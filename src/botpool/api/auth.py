"""The caller's identity: a key in a header, or a browser that signed in with one.

A browser keeps a cookie in place of the key. Other sites can make a browser send that cookie, so a
request that changes something must show that it comes from our pages.
"""

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from botpool.api.connections import caller_is_known
from botpool.api.dependencies import keys_of, sessions_of
from botpool.api.routes import GuardedRoute
from botpool.errors import Forbidden, Unauthorized
from botpool.models.keys import ApiKey
from botpool.models.sessions import Session
from botpool.states import Role

if TYPE_CHECKING:
    from botpool.access.limits import RateLimits, WrongKeys

COOKIE = "botpool"

_CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSIONS = "/api/v1/sessions"

key_header = HTTPBearer(
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


async def identify(request: Request) -> ApiKey:
    """The key of the caller. Raises `Unauthorized`, `Forbidden` or `TooManyRequests`.

    If there is a key in the header, the cookie is ignored. A request is counted once, however
    often it is asked for its caller.
    """
    found: ApiKey | None = getattr(request.state, "key", None)
    if found is not None:
        return found
    bearer, cookie = await key_header(request), await _cookie(request)
    key, session = await _authenticate(request, bearer, cookie)
    if key is None:
        if bearer is not None or cookie:
            count_wrong_key(request)
        raise Unauthorized("The request has no valid API key.")
    caller_is_known(request)
    # Checked first: a forged request must not use up its victim's rate limit.
    if bearer is None:
        refuse_forgery(request)
    limits: RateLimits = request.app.state.limits
    limits.take(key)
    refuse_change(request, key)
    request.state.key, request.state.session = key, session
    return key


def count_wrong_key(request: Request) -> None:
    """Count a request without a valid key against its address. Raises `TooManyWrongKeys`."""
    wrong_keys: WrongKeys = request.app.state.wrong_keys
    wrong_keys.count(request.client.host if request.client else "")


async def _authenticate(
    request: Request, bearer: HTTPAuthorizationCredentials | None, cookie: str | None
) -> tuple[ApiKey | None, Session | None]:
    if bearer is not None:
        return await (await keys_of(request)).authenticate(bearer.credentials), None
    session = await (await sessions_of(request)).authenticate(cookie) if cookie else None
    return None if session is None else session.key, session


class KeyRoute(GuardedRoute):
    """A route for callers with a key."""

    async def identify(self, request: Request) -> None:
        """Raise what `identify` raises."""
        await identify(request)


async def caller(
    request: Request,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(key_header)],
    __: Annotated[str | None, Depends(_cookie)],
) -> ApiKey:
    """The key of the caller. Raises what `identify` raises."""
    return await identify(request)


TheCaller = Annotated[ApiKey, Depends(caller)]


async def session_of(request: Request, _: TheCaller) -> Session | None:
    """The caller's session, if the caller is a browser."""
    session: Session | None = request.state.session
    return session


TheSession = Annotated[Session | None, Depends(session_of)]


def is_operator(key: ApiKey) -> bool:
    """Whether the owner of a key sees what slots are made of: engines, hosts and images."""
    return key.role is not Role.CLIENT


def refuse_change(request: Request, key: ApiKey) -> None:
    """Raise `Forbidden` if a viewer's request changes something, other than its own sessions."""
    changes = request.method not in _CHANGES_NOTHING
    if key.role is Role.VIEWER and changes and not request.url.path.startswith(_SESSIONS):
        raise Forbidden("A viewer's key changes nothing.")


async def admin(key: TheCaller) -> ApiKey:
    """The caller's key, if it is an admin's, or a viewer's that only looks.

    Raises what `caller` raises, and `Forbidden`.
    """
    if key.role is Role.CLIENT:
        raise Forbidden("Only an admin's key may do this.")
    return key


TheAdmin = Annotated[ApiKey, Depends(admin)]


def refuse_forgery(request: Request) -> None:
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
