"""Launches: a bot's way into its call, phase by phase, beside what is usual."""

from datetime import datetime
from typing import Self

from fastapi import APIRouter
from pydantic import Field

from botpool.api.auth import KeyRoute, TheCaller
from botpool.api.bots import BotId, visible
from botpool.api.dependencies import TheStore
from botpool.api.errors import documented
from botpool.api.wire import Wire
from botpool.errors import BotNotFound, Forbidden, TooManyRequests, Unauthorized
from botpool.models.launches import Launch, LaunchPhase, Percentiles, Phase

router = APIRouter(
    prefix="/api/v1/bots",
    tags=["bots"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)


class UsualOut(Wire):
    """How long something usually takes, in milliseconds; null while that is not known."""

    p5: float | None
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, usual: Percentiles) -> Self:
        """Percentiles as they go over the wire."""
        return cls(p5=usual.p5, p50=usual.p50, p95=usual.p95)


class LaunchPhaseOut(Wire):
    """One phase of a launch, named after what it ends with."""

    name: Phase
    began_at: datetime | None = Field(description="Null if it has not begun, or was skipped.")
    ended_at: datetime | None = Field(
        description="Null while it is under way; on an ended bot, if that is how far it came."
    )
    duration_ms: float | None
    usual: UsualOut

    @classmethod
    def of(cls, phase: LaunchPhase) -> Self:
        """A phase as it goes over the wire."""
        return cls(
            name=phase.name,
            began_at=phase.began_at,
            ended_at=phase.ended_at,
            duration_ms=phase.duration_ms,
            usual=UsualOut.of(phase.usual),
        )


class LaunchOut(Wire):
    """A bot's last launch: its phases in the order of time, beside what is usual."""

    bot_id: int
    attempt: int = Field(description="Which launch of the bot it is, from 1.")
    began_at: datetime
    phases: list[LaunchPhaseOut]
    total_ms: float | None = Field(description="From its beginning into the call, once there.")
    usual_total: UsualOut
    usual_of: int = Field(
        description="How many launches that is from: the last ones of the platform, at most 100,"
        " that came into their calls."
    )

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """A launch as it goes over the wire."""
        return cls(
            bot_id=launch.bot_id,
            attempt=launch.attempt,
            began_at=launch.began_at,
            phases=[LaunchPhaseOut.of(phase) for phase in launch.phases],
            total_ms=launch.total_ms,
            usual_total=UsualOut.of(launch.usual_total),
            usual_of=launch.usual_of,
        )


@router.get("/{botId}/launch", responses=documented(BotNotFound))
async def get_bot_launch(bot_id: BotId, caller: TheCaller, store: TheStore) -> LaunchOut:
    """How far a bot's last launch has come, phase by phase, and how long each usually takes."""
    await visible(store, caller, bot_id)
    launch = await store.launches.of_bot(bot_id)
    if launch is None:
        raise BotNotFound(f"There is no bot {bot_id}.")
    return LaunchOut.of(launch)
