"""Whether the process is alive, and whether it can do its work."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from botpool.api.errors import documented
from botpool.api.shapes import Ready, ReplicaCountsOut
from botpool.errors import (
    BotpoolError,
    DatabaseUnreachable,
    SchemaUnfit,
    SetupError,
)
from botpool.models.replicas import ReplicaCounts
from botpool.store import Store
from botpool.tasks.sharing import SharedCall

_ANSWER_SECONDS = 2.0

router = APIRouter(tags=["health"])


class Readiness:
    """Asks the database with every call. Calls that overlap share one answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._check = SharedCall(self._ask)

    async def check(self) -> ReplicaCounts:
        """How many replicas there are. Raises `DatabaseUnreachable` or `SchemaUnfit`.

        It answers within seconds, and asks whether the database takes writes, too.
        """
        try:
            return await self._check.within(_ANSWER_SECONDS)
        except TimeoutError:
            raise DatabaseUnreachable from None

    async def _ask(self) -> ReplicaCounts:
        try:
            await self._store.installation.check_schema()
            await self._store.installation.check_writable()
            return await self._store.replicas.counts()
        except DatabaseUnreachable:
            raise
        except SetupError as error:
            raise SchemaUnfit(str(error)) from error
        except BotpoolError as error:
            raise DatabaseUnreachable(str(error)) from error


async def readiness_of(request: Request) -> Readiness:
    """The readiness check that the app was made with."""
    readiness: Readiness = request.app.state.readiness
    return readiness


async def uncached(response: Response) -> None:
    """Tell caches not to keep the answer."""
    response.headers["Cache-Control"] = "no-store"


@router.get("/healthz")
async def get_health(response: Response) -> dict[str, str]:
    """Say that the process is alive. It always answers `ok`."""
    await uncached(response)
    return {"status": "ok"}


@router.get(
    "/readyz",
    dependencies=[Depends(uncached)],
    responses=documented(DatabaseUnreachable, SchemaUnfit),
)
async def get_readiness(readiness: Annotated[Readiness, Depends(readiness_of)]) -> Ready:
    """Say whether the database answers, takes writes, and has the schema that botpool needs.

    If not, the answer is 503 with `database_unreachable` or `schema_unfit`. Without a worker it
    is ready, too: it takes bots, which wait.
    """
    counts = await readiness.check()
    return Ready(replicas=ReplicaCountsOut(api=counts.api, worker=counts.worker))
