"""A line between a browser and botpool that can be cut and mended."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Line:
    """Passes on what both sides say, unless it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.url = ""

    def cut(self) -> None:
        """Break every connection, and let no new one through."""
        self._is_cut = True
        for writer in [*self._open]:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, far_writer}
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        self._open -= {writer, far_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while text := await reader.read(65536):
            writer.write(text)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[Line]:
    """A line to the botpool at this URL."""
    line = Line(int(url.rsplit(":", 1)[1]))
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        line.cut()
        server.close()
