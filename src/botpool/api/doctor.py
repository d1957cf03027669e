"""Doctor: what a worker found about this installation, and what mends it."""

from dataclasses import asdict
from datetime import datetime
from typing import Self

from fastapi import APIRouter
from pydantic import Field

from botpool.api.auth import KeyRoute, TheAdmin
from botpool.api.dependencies import ThePool, TheStore
from botpool.api.errors import documented
from botpool.api.wire import Wire
from botpool.errors import Forbidden, TooManyRequests, Unauthorized
from botpool.models.diagnoses import Diagnosis, Result

router = APIRouter(
    prefix="/api/v1",
    tags=["pool"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)


class FindingOut(Wire):
    """What a check found."""

    check: str
    engine: str | None = Field(description="Null: the database, or the settings as a whole.")
    result: Result
    found: str
    mend: str = Field(description="What to do about it; empty if there is nothing to do.")


class DiagnosisOut(Wire):
    """What doctor found last, in order. No secret is in it."""

    findings: list[FindingOut]
    made_at: datetime | None = Field(description="Null until a worker has examined it once.")
    made_by: str | None = Field(description="The replica whose settings and engines were examined.")
    asked_at: datetime | None = Field(description="Set while another one is wanted.")
    asked_by: str | None
    begun_at: datetime | None = Field(description="Set while a worker makes another one.")

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Self:
        """A diagnosis as it goes over the wire."""
        return cls(**asdict(diagnosis))


@router.get("/doctor")
async def get_diagnosis(_: TheAdmin, store: TheStore) -> DiagnosisOut:
    """What doctor found last: a worker examines the installation every hour, and on request."""
    return DiagnosisOut.of(await store.diagnoses.newest())


@router.post("/doctor/check", status_code=202)
async def check_installation(caller: TheAdmin, pool: ThePool, store: TheStore) -> DiagnosisOut:
    """Have doctor examine the installation now: a worker does it.

    The stream has the outcome (`doctor.noted`), and `GET /doctor` what was found.
    """
    await pool.diagnoses.ask(by=caller.name)
    return DiagnosisOut.of(await store.diagnoses.newest())
