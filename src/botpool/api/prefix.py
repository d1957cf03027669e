"""Behind a path of a host: `https://example.org/botpool/` in place of a host of its own.

All else is written as if botpool were at the root of its host. Here a request loses the prefix,
unless the proxy has taken it away already, and what a browser follows gets it: links and forms in
pages, redirects, and the path of cookies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# In text that users wrote, quotation marks are escaped: this finds attributes of ours only.
_LINK = re.compile(rb'(\s(?:href|src|action|formaction|data-[a-z]+)=")/(?!/)')
_COOKIE_PATH = re.compile(r"(;\s*path=)/(?=;|$)", re.IGNORECASE)


class PathPrefix:
    """Lets an app be reached below a path, and at the root as before."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on the request."""
        if scope["type"] == "http":
            scope = {**scope, "path": self._inside(scope["path"])}
            send = _Outside(self._prefix, send)
        await self._app(scope, receive, send)

    def _inside(self, path: str) -> str:
        if path == self._prefix:
            return "/"
        return path.removeprefix(self._prefix) if path.startswith(f"{self._prefix}/") else path


class _Outside:
    """Sends an answer with every path as the browser needs it."""

    def __init__(self, prefix: str, send: Send) -> None:
        self._prefix = prefix
        self._send = send
        self._page: Message | None = None
        """The start of an answer that is a page: its length is known when its body is."""
        self._body = b""

    async def __call__(self, message: Message) -> None:
        """Send a message, or keep it until the page is whole."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=[*map(self._header, message["headers"])])
            message = {**message, "headers": headers.raw}
            if headers.get("content-type", "").startswith("text/html"):
                self._page = message
                return
        elif message["type"] == "http.response.body" and self._page is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_page(self._page)
            return
        await self._send(message)

    def _header(self, header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        name, value = header
        text = value.decode("latin-1")
        if name == b"location" and text.startswith("/"):
            text = f"{self._prefix}{text}"
        elif name == b"set-cookie":
            text = _COOKIE_PATH.sub(rf"\g<1>{self._prefix}", text)
        return name, text.encode("latin-1")

    async def _send_page(self, start: Message) -> None:
        body = _LINK.sub(rb"\g<1>%s/" % self._prefix.encode(), self._body)
        MutableHeaders(raw=start["headers"])["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
