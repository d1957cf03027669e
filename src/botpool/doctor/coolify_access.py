"""Access to Coolify's API: its URL, its token, and what the token may do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from botpool.doctor.address import reason, shown
from botpool.errors import EngineUnavailable

if TYPE_CHECKING:
    from botpool.doctor.findings import Check, Report
    from botpool.engines.coolify.api import CoolifyApi

_Answer = TypeVar("_Answer")

NOWHERE = "botpool-doctor"
"""The uuid of an application that doesn't exist."""

_ANSWER_SECONDS = 10.0
_LONGEST_WORDS = 200
_VERSION = re.compile(r"v?\d+\.\d+[\w.+-]{0,40}")
_MEND_ADDRESS = (
    "Set BOTPOOL_COOLIFY_API_URL to the address that you open Coolify with, without a path."
)
NEW_TOKEN = (  # advice about a token, not a token
    "Create a token with read, write and deploy under Keys & Tokens in Coolify, and set all of it,"  # noqa: S105
    " including its number: BOTPOOL_COOLIFY_API_TOKEN='1|…'."
)
_TRIALS = {
    "write": ("PATCH", f"/applications/{NOWHERE}"),
    "deploy": ("POST", f"/applications/{NOWHERE}/stop"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the token allows.

    `version` is Coolify's version, None if the token may not read. `limit` is how many requests
    Coolify allows in a minute, None if it doesn't say.
    """

    version: str | None
    limit: int | None


class Reader:
    """Reads from Coolify: one try for each call, and the answer unchanged."""

    def __init__(self, url: str, token: str, transport: httpx.AsyncBaseTransport | None) -> None:
        base = url.rstrip("/")
        self.base = base if base.endswith("/api/v1") else f"{base}/api/v1"
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=_ANSWER_SECONDS,
            headers={"Accept": "application/json", "Authorization": f"Bearer {token}"},
        )

    async def get(self, path: str) -> httpx.Response:
        """The answer, whatever its status. Raises `httpx.HTTPError` if there is none."""
        return await self._client.get(f"{self.base}{path}")

    async def read(self, path: str, shape: TypeAdapter[_Answer]) -> _Answer | None:
        """What is at a path, None if nothing is. Raises `EngineUnavailable` if that is unknown."""
        try:
            answer = await self.get(path)
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"No answer to GET {path}: {reason(error)}") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if not answer.is_success:
            said = f"Coolify answers {answer.status_code} to GET {path}: {words(answer)}"
            raise EngineUnavailable(said)
        try:
            return shape.validate_json(answer.content)
        except ValidationError as error:
            said = f"Coolify's answer to GET {path} is not as expected."
            raise EngineUnavailable(said) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def examine_access(report: Report, reader: Reader, api: CoolifyApi) -> Access | None:
    """Check the URL and the token, and try what the token may do. None if there is no access.

    The trials are made on an application that doesn't exist.
    """
    access = None
    async with report.check("access", _MEND_ADDRESS) as check:
        try:
            answer = await reader.get("/version")
        except httpx.HTTPError as error:
            where = shown(urlsplit(reader.base))
            check.problem(f"{where} can't be reached: {reason(error)}", _MEND_ADDRESS)
            return None
        access = _check_answer(check, answer)
    if access is not None:
        await _examine_abilities(report, access, api)
    return access


def _check_answer(check: Check, answer: httpx.Response) -> Access | None:
    """Judge the answer to `/version`. By its words: Coolify uses one status for several causes."""
    said = words(answer)
    where = shown(urlsplit(str(answer.url))).removesuffix("/api/v1/version")
    if answer.is_redirect:
        target = shown(urlsplit(str(answer.next_request.url))) if answer.next_request else "nowhere"
        check.problem(f"{where} redirects to {target}", _MEND_ADDRESS)
    elif answer.status_code == httpx.codes.UNAUTHORIZED:
        check.problem("The token is not valid: it is mistyped, revoked or expired", NEW_TOKEN)
    elif answer.status_code == httpx.codes.FORBIDDEN:
        return _check_refusal(check, said, answer)
    elif answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        check.warning(
            "Coolify's rate limit for this user is used up",
            "Wait a minute and run this again. If it happens again, find out what else uses this"
            " user's tokens.",
        )
    elif answer.is_server_error:
        check.problem(f"Coolify answers {answer.status_code}: {said}", "Read Coolify's own logs.")
    elif answer.is_success and (version := _VERSION.fullmatch(answer.text.strip().strip('"'))):
        check.ok(f"{where} answers and accepts the token")
        return Access(version=version[0], limit=_limit(answer))
    else:
        check.problem(f"What answers at {where} is not Coolify's API", _MEND_ADDRESS)
    return None


def _check_refusal(check: Check, said: str, answer: httpx.Response) -> Access | None:
    if "API is disabled" in said:
        check.problem(
            "Coolify's API is turned off", "Turn it on in Coolify: Settings, Advanced, API Access."
        )
    elif "not allowed to access the API" in said:
        check.problem(
            "Coolify's API doesn't accept requests from this machine's address",
            "Add the address to the allowed IPs in Coolify: Settings, Advanced.",
        )
    elif "Missing required permission" in said:
        check.ok("Coolify accepts the token")
        return Access(version=None, limit=_limit(answer))
    else:
        check.problem(f"Coolify answers 403: {said}", NEW_TOKEN)
    return None


async def _examine_abilities(report: Report, access: Access, api: CoolifyApi) -> None:
    may = {"read": access.version is not None}
    for ability, (method, path) in _TRIALS.items():
        async with report.check("abilities", NEW_TOKEN):
            may[ability] = await api.may(method, path)
    async with report.check("abilities") as check:
        whole = len(may) > len(_TRIALS)
        if whole and not any(may.values()):
            # A member's token is refused with the words for one without abilities.
            check.problem(
                "The token may do nothing: it has no abilities, or its user is no admin of the"
                " team",
                f"Sign in to Coolify as an admin of the team. {NEW_TOKEN}",
            )
        elif whole and all(may.values()):
            check.ok(f"The token may {', '.join(may)}")
        else:
            for ability in (each for each, able in may.items() if not able):
                check.problem(f"The token may not {ability}", NEW_TOKEN)


def _limit(answer: httpx.Response) -> int | None:
    limit = answer.headers.get("X-RateLimit-Limit", "")
    return int(limit) if limit.isdecimal() else None


def words(answer: httpx.Response) -> str:
    """What Coolify says is wrong."""
    try:
        said = answer.json()
    except ValueError:
        return "not JSON"
    message = said.get("message") if isinstance(said, dict) else None
    return str(message or "nothing more")[:_LONGEST_WORDS]
