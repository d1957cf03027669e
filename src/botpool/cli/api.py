"""The API, as commands call it. What goes wrong is a sentence and an exit code."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx

from botpool import __version__
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.place import Place, find_place
from botpool.cli.start import start
from botpool.settings import API_URL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import TypeVar

    from botpool.settings import Settings

    Result = TypeVar("Result")

Json = dict[str, Any]

LARGEST_PAGE = 200
LARGEST_ID = 2**63 - 1

_PREFIX = "/api/v1"
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_QUIET_SECONDS = 45.0
"""A stream says something every 15 seconds: one that is quiet for longer is cut."""
_LONGEST_PAUSE_SECONDS = 10
_LONGEST_TOLD = 300
_PROXIES = {502, 503, 504}
_CODES = {
    401: Exit.KEY,
    403: Exit.KEY,
    404: Exit.NOT_FOUND,
    429: Exit.TOO_MANY,
    503: Exit.UNAVAILABLE,
}


def ask(work: Callable[[Api], Awaitable[Result]], *, needs_server: bool = True) -> Result:
    """Run a command's work with the API.

    Work that doesn't need a server is done where none runs, too, on the database itself.
    """
    settings = start()

    async def asked() -> Result:
        async with opened_api(settings, needs_server=needs_server) as api:
            return await work(api)

    return asyncio.run(asked())


@asynccontextmanager
async def opened_api(settings: Settings, *, needs_server: bool = True) -> AsyncIterator[Api]:
    """The API for the length of the block. Raises `CommandFailed` if there is none."""
    try:
        place = find_place(settings)
    except CommandFailed as error:
        if needs_server or error.code is not Exit.NO_ANSWER or not has_database(settings):
            raise
        # Imported here because it takes long, and a botpool that runs makes it superfluous.
        from botpool.cli.serverless import serverless  # noqa: PLC0415

        async with serverless(settings) as client:
            yield Api(settings, Place(settings.local_url, "", "", "", is_here=True), client)
        return
    api = Api(settings, place)
    try:
        yield api
    finally:
        await api.close()


def has_database(settings: Settings) -> bool:
    """Whether there is a database that this machine may use: one that is named, or embedded."""
    return settings.database_url is not None or (settings.data_dir / "postgres").exists()


class Api:
    """Calls of the API. Each returns its JSON, or raises `CommandFailed`."""

    def __init__(
        self, settings: Settings, place: Place, client: httpx.AsyncClient | None = None
    ) -> None:
        self._settings = settings
        self._place = place
        self._client = client or _client(place)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def find_again(self) -> None:
        """Look again where the API is: a botpool that was restarted may listen elsewhere."""
        place = find_place(self._settings)
        if place != self._place:
            await self._client.aclose()
            self._place, self._client = place, _client(place)

    async def get(self, path: str, **parameters: object) -> Json:
        """Read something."""
        return await self._call("GET", path, params=_given(parameters))

    async def post(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        """Create something, or have something done."""
        return await self._call("POST", path, json=body, headers=headers)

    async def patch(self, path: str, body: object) -> Json:
        """Change something."""
        return await self._call("PATCH", path, json=body)

    async def delete(self, path: str) -> Json:
        """Delete something."""
        return await self._call("DELETE", path)

    async def pages(
        self, path: str, name: str, limit: int | None, cursor: str | None = None, **more: object
    ) -> Json:
        """A list of at most `limit` rows, from as many pages as that takes, as one page."""
        found: list[Any] = []
        while True:
            left = LARGEST_PAGE if limit is None else min(LARGEST_PAGE, limit - len(found))
            asked = {**more, "limit": left, "cursor": cursor}
            page = await (self._later(path, asked) if found else self.get(path, **asked))
            found += page[name]
            cursor = page["nextCursor"]
            if cursor is None or len(found) == limit:
                return {name: found, "nextCursor": cursor}

    async def _later(self, path: str, asked: Mapping[str, object]) -> Json:
        """A later page. It was our own haste if there are too many requests: then wait for it."""
        for _ in range(_LONGEST_PAUSE_SECONDS):
            with suppress(_TooFast):
                return await self.get(path, **asked)
            await asyncio.sleep(1)
        return await self.get(path, **asked)

    @asynccontextmanager
    async def stream(
        self, after: str | None, **parameters: object
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of the stream, after a position. Raises `CommandFailed` also when it is cut."""
        headers = {} if after is None else {"Last-Event-ID": after}
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS, read=_QUIET_SECONDS)
        try:
            async with self._client.stream(
                *("GET", f"{_PREFIX}/stream"),
                params=_given(parameters),
                headers=headers,
                timeout=timeout,
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    self._check(answer)
                yield answer.aiter_lines()
        except httpx.HTTPError as error:
            raise self._no_answer("GET", error) from error

    async def _call(self, method: str, path: str, **request: Any) -> Json:
        try:
            answer = await self._client.request(method, _PREFIX + path, **request)
        except httpx.HTTPError as error:
            raise self._no_answer(method, error) from error
        return self._check(answer)

    def _check(self, answer: httpx.Response) -> Json:
        """The answer's JSON. Raises `CommandFailed` if it is an error, or not botpool's."""
        if answer.status_code == httpx.codes.NO_CONTENT:
            return {}
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.is_success and isinstance(said, dict):
            return said
        if not isinstance(said, dict) or not {"code", "detail"} <= said.keys():
            raise self._stranger(answer)
        raise self._refusal(answer, said)

    def _refusal(self, answer: httpx.Response, said: Json) -> CommandFailed:
        url, code, sentence = self._place.url, said["code"], str(said["detail"])
        if (seconds := answer.headers.get("Retry-After")) and "try again in" not in sentence:
            sentence += f" Try again in {seconds} s."
        if code == "unauthorized":
            sentence = f"The botpool at {url} doesn't know the key in {self._place.key_told_by}."
        elif answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            sentence = f"The botpool at {url} can't do this now: {sentence}"
        elif code == "not_found":
            return CommandFailed(
                f"The botpool at {url} doesn't know this call. Check {API_URL}; it may also be"
                f" older than this command, {__version__}.",
                Exit.NOT_BOTPOOL,
            )
        kind = _TooFast if code == "too_many_requests" else CommandFailed
        return kind(sentence, _CODES.get(answer.status_code, Exit.FAILED))

    def _stranger(self, answer: httpx.Response) -> CommandFailed:
        """What answered, if it wasn't botpool."""
        url, told = self._place.url, self._place.told_by
        if answer.status_code in _PROXIES:
            return CommandFailed(
                f"What is in front of botpool at {url} answers {answer.status_code}: botpool"
                " doesn't answer it.",
                Exit.UNAVAILABLE,
            )
        if answer.is_redirect:
            to = answer.headers.get("Location", "")[:_LONGEST_TOLD]
            return CommandFailed(f"{url} redirects to {to}: correct {API_URL}.", Exit.NOT_BOTPOOL)
        return CommandFailed(
            f"What answers at {url} is not botpool ({answer.status_code}): check {told}.",
            Exit.NOT_BOTPOOL,
        )

    def _no_answer(self, method: str, error: httpx.HTTPError) -> CommandFailed:
        url, told = self._place.url, self._place.told_by
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
            hint = {
                API_URL: f"check {API_URL}",
                "the settings": f"run `botpool serve`, or set {API_URL}",
            }.get(told, f"{told}, which listens there, may hang")
            return CommandFailed(
                f"Nothing answers at {url}: {_why(error)}; {hint}.", Exit.NO_ANSWER
            )
        after = "" if method == "GET" else " What was asked may or may not be done."
        if isinstance(error, httpx.TimeoutException):
            return CommandFailed(
                f"The botpool at {url} doesn't answer in time.{after}", Exit.NO_ANSWER
            )
        return CommandFailed(f"The connection to {url} was cut.{after}", Exit.NO_ANSWER)


class _TooFast(CommandFailed):
    """The key is used too often."""


def _client(place: Place) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=place.url,
        headers={
            "Authorization": f"Bearer {place.key}",
            "User-Agent": f"botpool/{__version__}",
        },
        timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
        # A proxy of the environment leads to other machines.
        trust_env=not place.is_here,
    )


def _given(parameters: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _why(error: httpx.HTTPError) -> str:
    """Why a connection failed, in the words of whoever found out."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate can't be trusted: {cause.verify_message.rstrip('.')}"
        if isinstance(cause, ssl.SSLError):
            return "it does not speak TLS as https does"
        if isinstance(cause, OSError) and cause.errno:
            # asyncio puts the address in the place of the reason.
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error).rstrip(".") or type(error).__name__
