"""Whether the process lives, and whether it can do its work."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from botpool.api.errors import documented
from botpool.errors import BotpoolError, DatabaseUnreachable, SchemaUnfit, SetupError
from botpool.pool import Pool

_ANSWER_SECONDS = 2.0

router = APIRouter(tags=["health"])


class Readiness:
    """Asks the database, each time anew. Those who ask together share one answer."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._check: asyncio.Task[BotpoolError | None] | None = None

    async def check(self) -> None:
        """Raise `DatabaseUnreachable` or `SchemaUnfit`, within seconds, unless all is well."""
        if self._check is None:
            self._check = asyncio.create_task(self._ask())
            self._check.add_done_callback(self._asked)
        asked = self._check
        # Not cancelled and waited for: to give up a connection that hangs may take long, too.
        await asyncio.wait({asked}, timeout=_ANSWER_SECONDS)
        if not asked.done():
            asked.cancel()
            self._asked(asked)
            raise DatabaseUnreachable
        error = DatabaseUnreachable() if asked.cancelled() else asked.result()
        if error is not None:
            raise error

    async def _ask(self) -> BotpoolError | None:
        try:
            await self._pool.check_schema()
        except DatabaseUnreachable as error:
            return error
        except SetupError as error:
            return SchemaUnfit(str(error))
        except BotpoolError as error:
            return DatabaseUnreachable(str(error))
        return None

    def _asked(self, asked: asyncio.Task[BotpoolError | None]) -> None:
        if self._check is asked:
            self._check = None


async def readiness_of(request: Request) -> Readiness:
    """What the app was made with."""
    readiness: Readiness = request.app.state.readiness
    return readiness


def uncached(response: Response) -> None:
    """Let nobody keep the answer."""
    response.headers["Cache-Control"] = "no-store"


@router.get("/healthz", dependencies=[Depends(uncached)])
async def healthz() -> dict[str, str]:
    """Whether the process lives: it does if it answers."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    dependencies=[Depends(uncached)],
    responses=documented(DatabaseUnreachable),
)
async def readyz(readiness: Annotated[Readiness, Depends(readiness_of)]) -> dict[str, str]:
    """Whether the database answers, and has the schema of this botpool.

    If not, 503: `database_unreachable` or `schema_unfit`.
    """
    await readiness.check()
    return {"status": "ready"}
