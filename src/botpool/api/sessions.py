"""Sessions of browsers: links that sign in, who is signed in, and how that ends."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from botpool.api.auth import KeyRoute, TheCaller, TheSession, is_operator
from botpool.api.dependencies import TheSessions, TheSettings
from botpool.api.errors import documented
from botpool.api.shapes import SessionList, SessionOut, SignInLink
from botpool.errors import Forbidden, SessionNotFound, TooManyRequests, Unauthorized
from botpool.states import Role

router = APIRouter(
    prefix="/api/v1/sessions",
    tags=["sessions"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)

_LARGEST_ID = 2**63 - 1


@router.post("", status_code=201)
async def create_sign_in_link(
    request: Request,
    caller: TheCaller,
    session: TheSession,
    sessions: TheSessions,
    settings: TheSettings,
) -> SignInLink:
    """Make a link that signs one browser in with your key, once, within ten minutes.

    Only a key may do this. A browser can't: else it would stay signed in for ever.
    """
    if session is not None:
        raise Forbidden("Only a key can make a link that signs in, not a browser's session.")
    invitation = await sessions.invite(caller)
    link = invitation.link(f"{str(request.base_url).rstrip('/')}{settings.path_prefix}")
    return SignInLink(url=link, expires_at=invitation.expires_at)


@router.get("")
async def list_sessions(
    caller: TheCaller, session: TheSession, sessions: TheSessions
) -> SessionList:
    """List the browsers that are signed in with your key, the newest first; for operators, all.

    At most 1,000 are listed.
    """
    return SessionList(
        sessions=[
            SessionOut.of(each, current=session is not None and each.id == session.id)
            for each in await sessions.listed(None if is_operator(caller) else caller)
        ]
    )


@router.delete("/{sessionId}", status_code=204, responses=documented(SessionNotFound))
async def delete_session(
    session_id: Annotated[int, Path(alias="sessionId", ge=0, le=_LARGEST_ID)],
    caller: TheCaller,
    sessions: TheSessions,
) -> None:
    """Sign a browser out: one of your key's or, for an admin, any."""
    await sessions.end(session_id, None if caller.role is Role.ADMIN else caller)
