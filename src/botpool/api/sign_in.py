"""`/sign-in` and `/sign-out`: how a browser begins and ends its session. Not part of the API."""

from http import HTTPStatus
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from botpool.access.sessions import SESSION_LIFETIME
from botpool.api.auth import COOKIE, count_wrong_key, refuse_forgery
from botpool.api.connections import caller_is_known
from botpool.api.dependencies import TheSessions
from botpool.api.policy import of_text, policy
from botpool.errors import Unauthorized

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool.api")

router = APIRouter(include_in_schema=False)

# These answers are for one browser, and their address has a code: no cache may keep them.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

_NO_CODE = "This link signs nobody in: it has no code, or its code was used or has expired."
_HOW = "Run `botpool sign-in` where botpool runs: it prints a new link."

_STYLE = """
  body { font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto;
    padding: 0 1rem; color: #1c2430; background: #fbfbfa; }
  code { background: #eceff1; padding: .1em .3em; border-radius: 4px; }
  a { color: #0b57d0; }
  @media (prefers-color-scheme: dark) {
    body { color: #e6e8ea; background: #14181d; } code { background: #242b33; }
    a { color: #8ab4f8; }
  }
"""

_SCRIPT = 'document.getElementById("here").textContent = location.href.replace(/\\/sign-in.*/, "")'


_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>botpool</title>
<style>{_STYLE}</style>
<h1>Sign in</h1>
<p>{_NO_CODE}</p>
<p>To sign in, run this where botpool runs, and open the link that it prints. It works once, within
ten minutes:</p>
<pre><code>botpool sign-in</code></pre>
<p>From elsewhere, with a key:</p>
<pre><code>BOTPOOL_URL=<span id="here">…</span> BOTPOOL_API_KEY=… botpool sign-in</code></pre>
<script>{_SCRIPT}</script>
"""
_POLICY = policy(script=of_text(_SCRIPT), style=of_text(_STYLE))


@router.get("/sign-in", response_model=None)
async def sign_in(
    request: Request, sessions: TheSessions, code: Annotated[str, Query()] = ""
) -> Response:
    """Sign a browser in with a code, and redirect it to the dashboard, without the code."""
    # The server logs the request later, from this scope: the code must not be in it.
    request.scope["query_string"] = b""
    signed = await sessions.sign_in(code) if code else None
    if signed is None:
        if code:
            count_wrong_key(request)
        if "text/html" not in request.headers.get("accept", ""):
            raise Unauthorized(f"{_NO_CODE} {_HOW}")
        return HTMLResponse(
            _PAGE, HTTPStatus.UNAUTHORIZED, headers={**_PRIVATE, "Content-Security-Policy": _POLICY}
        )
    session, kept = signed
    caller_is_known(request)
    _log.info(
        "browser signed in",
        key_id=session.key.id,
        key_name=session.key.name,
        session_id=session.id,
    )
    response = _to_dashboard()
    response.set_cookie(
        COOKIE,
        kept,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/sign-out")
async def sign_out(request: Request, sessions: TheSessions) -> RedirectResponse:
    """End a browser's session."""
    refuse_forgery(request)
    if kept := request.cookies.get(COOKIE):
        await sessions.sign_out(kept)
    response = _to_dashboard()
    response.delete_cookie(
        COOKIE, secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return response


def _to_dashboard() -> RedirectResponse:
    return RedirectResponse("/", HTTPStatus.SEE_OTHER, headers=_PRIVATE)
