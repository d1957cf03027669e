"""Projects: they own bots, and their limits hold whoever asks, and however many at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from botpool.access.projects import Projects
from botpool.errors import (
    BotpoolError,
    DuplicateBot,
    DurationTooLong,
    IdempotencyMismatch,
    InvalidRequest,
    ProjectInUse,
    ProjectNameTaken,
    ProjectNotFound,
    TooManyBots,
    TooManyCreations,
)
from botpool.models.bots import BotPage, CreatedBot
from botpool.models.projects import DEFAULT_PROJECT, ProjectLimits, ProjectNumbers
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import connect
from botpool.store.queries import named_queries
from botpool.store.store import Store
from tests.support.scene import new_bot

if TYPE_CHECKING:
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres


@pytest.fixture
def projects(scene: Scene) -> Projects:
    return Projects(scene.store)


async def limited(projects: Projects, **limits: int) -> int:
    project, _ = await projects.create("a", ProjectLimits(**limits))
    return project.id


# Whose a bot is


async def test_a_bot_is_of_the_default_project_unless_told_otherwise(
    scene: Scene, projects: Projects
) -> None:
    other, _ = await projects.create("other")
    bots = [(await scene.create()).bot, (await scene.create(project_id=other.id)).bot]
    assert [bot.project_id for bot in bots] == [DEFAULT_PROJECT, other.id]
    for bot in bots:
        assert await scene.store.bots.get(bot.id) == bot
        assert await scene.store.bots.page(BotPage(project_id=bot.project_id)) == [bot]


async def test_there_is_no_bot_without_a_project(scene: Scene) -> None:
    with pytest.raises(ProjectNotFound, match="no project 99"):
        await scene.create(project_id=99)


async def test_a_request_is_the_same_with_any_key_of_its_project_and_in_no_other(
    scene: Scene, projects: Projects
) -> None:
    other, _ = await projects.create("other")
    same: dict[str, Any] = {"idempotency_key": "k", "request_digest": b"d"}
    first = await scene.create(key_id=1, **same)
    assert (await scene.create(key_id=2, **same)).bot.id == first.bot.id
    assert (await scene.create(project_id=other.id, **same)).bot.id != first.bot.id
    with pytest.raises(IdempotencyMismatch):
        await scene.create(key_id=2, idempotency_key="k", request_digest=b"e")


async def test_only_one_live_bot_of_a_project_has_a_deduplication_key(
    scene: Scene, projects: Projects
) -> None:
    other, _ = await projects.create("other")
    first = await scene.create(key_id=1, deduplication_key="k")
    with pytest.raises(DuplicateBot) as raised:
        await scene.create(key_id=2, deduplication_key="k")
    assert raised.value.bot_id == first.bot.id
    await scene.create(project_id=other.id, deduplication_key="k")


# Limits


async def test_a_project_has_no_more_bots_at_once_than_it_may(
    scene: Scene, projects: Projects
) -> None:
    project = await limited(projects, max_live_bots=4)
    bots = [(await scene.create(project_id=project)).bot for _ in range(4)]  # the last one waits
    with pytest.raises(TooManyBots, match="may have 4 bots at once"):
        await scene.create(project_id=project)
    await scene.create()
    await scene.pool.assignments.stop_bot(bots[3].id)
    await scene.create(project_id=project)


async def test_a_project_creates_no_more_in_any_minute_than_it_may(
    scene: Scene, projects: Projects
) -> None:
    project = await limited(projects, max_creations_per_minute=2)
    await scene.create(project_id=project)
    await scene.pass_time(seconds=40)
    bot = (await scene.create(project_id=project)).bot
    await scene.pool.assignments.stop_bot(bot.id)
    with pytest.raises(TooManyCreations, match="may create 2 bots a minute") as raised:
        await scene.create(project_id=project)
    assert raised.value.retry_after_seconds == 20
    await scene.pass_time(seconds=20)
    await scene.create(project_id=project)
    with pytest.raises(TooManyCreations) as raised:
        await scene.create(project_id=project)
    assert raised.value.retry_after_seconds == 40


async def test_a_limit_of_nothing_lets_nothing_in(scene: Scene, projects: Projects) -> None:
    project = await limited(projects, max_creations_per_minute=0)
    with pytest.raises(TooManyCreations):
        await scene.create(project_id=project)


async def test_a_request_that_was_answered_is_answered_again_at_the_limit(
    scene: Scene, projects: Projects
) -> None:
    project = await limited(projects, max_live_bots=1, max_creations_per_minute=1)
    same: dict[str, Any] = {"idempotency_key": "k", "request_digest": b"d", "project_id": project}
    first = await scene.create(**same)
    assert (await scene.create(**same)).bot.id == first.bot.id


@pytest.mark.parametrize("limit", ["max_live_bots", "max_creations_per_minute"])
async def test_limits_hold_across_replicas_and_in_bursts(
    scene: Scene, projects: Projects, database_url: str, limit: str
) -> None:
    """Half of the bots find an idle slot, half have to grow the pool or wait: both ways count."""
    project = await limited(projects, **{limit: 7})
    for _ in range(3):
        await scene.idle()
    async with connect(database_url) as one, connect(database_url) as two:
        pools = [Pool(Store(database), Settings(max_pool_size=3)) for database in (one, two)]
        made = await asyncio.gather(
            *(
                pools[n % 2].creation.create_bot(new_bot(project_id=project if n % 3 else 1))
                for n in range(60)
            ),
            return_exceptions=True,
        )
    errors = [each for each in made if isinstance(each, BotpoolError)]
    created = [each.bot for each in made if isinstance(each, CreatedBot)]
    assert {type(error) for error in errors} <= {TooManyBots, TooManyCreations}
    assert [bot.project_id for bot in created].count(project) == 7
    assert [bot.project_id for bot in created].count(1) == 20
    for bot in created:
        assert (await scene.store.bots.get(bot.id)).project_id == bot.project_id


async def test_those_that_a_limit_refuses_fail_no_other_that_arrives_with_them(
    scene: Scene, projects: Projects
) -> None:
    """Each caller gets the answer for its own bot."""
    project = await limited(projects, max_live_bots=1)
    asked = [(project, "a"), (1, "b"), (project, "c"), (1, "d"), (project, "e")]
    made = await asyncio.gather(
        *(scene.create(project_id=of, bot_display_name=name) for of, name in asked),
        return_exceptions=True,
    )
    names = [each.bot.bot_display_name if isinstance(each, CreatedBot) else None for each in made]
    assert names == ["a", "b", None, "d", None]
    for each in made:
        if isinstance(each, CreatedBot):
            assert await scene.store.bots.get(each.bot.id) == each.bot


async def test_a_bot_may_not_ask_to_stay_longer_than_its_project_lets_it(
    scene: Scene, projects: Projects
) -> None:
    project = await limited(projects, max_duration_ms=60_000)
    for asked, given in ((None, 60_000), (59_999, 59_999)):
        bot = (await scene.create(project_id=project, max_duration_ms=asked)).bot
        assert bot.max_duration_ms == given
        assert await scene.store.bots.get(bot.id) == bot
    with pytest.raises(DurationTooLong, match="stay for at most 60000 ms") as raised:
        await scene.create(project_id=project, max_duration_ms=60_001)
    assert raised.value.field == "max_duration_ms"


async def test_limits_can_be_changed_and_lifted(scene: Scene, projects: Projects) -> None:
    project = await limited(projects, max_live_bots=2, max_creations_per_minute=9)
    await scene.create(project_id=project)
    changed = await projects.change(project, {"max_live_bots": 1, "name": "b"})
    assert changed.name == "b"
    assert changed.limits == ProjectLimits(max_live_bots=1, max_creations_per_minute=9)
    with pytest.raises(TooManyBots):
        await scene.create(project_id=project)
    await projects.change(project, {"max_live_bots": None})
    await scene.create(project_id=project)


# Numbers


async def test_a_project_tells_its_numbers(scene: Scene, projects: Projects) -> None:
    project, _ = await projects.create("a")
    assert project.numbers == ProjectNumbers(live=0, waiting=0, created_today=0, failed_today=0)
    now = await scene.store.installation.now()
    await scene.pass_time(seconds=(24 - now.hour) * 3600)  # it is between 0 and 1 o'clock
    bots = [(await scene.create(project_id=project.id, queue_timeout_ms=0)).bot for _ in range(5)]
    await scene.create()
    await scene.pass_time(seconds=1)
    await scene.pool.assignments.stop_bot(bots[0].id)
    numbers = (await scene.store.projects.get(project.id)).numbers
    assert numbers == ProjectNumbers(live=4, waiting=2, created_today=5, failed_today=0)
    await scene.pool.queue.expire()
    await scene.pass_time(days=1)
    await scene.pool.queue.expire()
    *_, found = await scene.store.projects.all()
    assert found.numbers == ProjectNumbers(live=2, waiting=0, created_today=0, failed_today=0)


# Made and deleted


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 101])
async def test_a_name_is_short_and_printable(projects: Projects, name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 100 printable"):
        await projects.create(name)


async def test_a_name_is_of_one_project(projects: Projects) -> None:
    project, _ = await projects.create("a")
    with pytest.raises(ProjectNameTaken, match="has the name default"):
        await projects.create("default")
    with pytest.raises(ProjectNameTaken):
        await projects.change(project.id, {"name": "default"})


async def test_what_is_not_there_is_not_found(projects: Projects) -> None:
    for call in (projects.change(99, {"name": "b"}), projects.change(99, {}), projects.delete(99)):
        with pytest.raises(ProjectNotFound, match="no project 99"):
            await call


async def test_the_default_project_is_always_there(projects: Projects) -> None:
    with pytest.raises(ProjectInUse, match="default project can't"):
        await projects.delete(DEFAULT_PROJECT)


async def test_a_project_is_deleted_with_what_is_its_own_once_nothing_lives(
    scene: Scene, projects: Projects
) -> None:
    project, _ = await projects.create("a")
    kept = (await scene.create()).bot
    bot = (await scene.create(project_id=project.id)).bot
    with pytest.raises(ProjectInUse, match="bots that haven't ended"):
        await projects.delete(project.id)
    await scene.pool.assignments.stop_bot(bot.id)
    await projects.delete(project.id)
    assert await scene.store.bots.find(bot.id) is None
    assert await scene.store.bots.find(kept.id) == kept
    with pytest.raises(ProjectNotFound):
        await scene.store.projects.get(project.id)


async def test_a_bot_created_while_its_project_is_deleted_finds_none(
    scene: Scene, projects: Projects
) -> None:
    project, _ = await projects.create("a")
    async with scene.database.transaction() as connection:
        await connection.execute("SELECT delete_project($1)", project.id)
        creating = asyncio.create_task(scene.create(project_id=project.id))
        await scene.until_blocked(creating)
    with pytest.raises(ProjectNotFound):
        await creating


async def test_a_project_is_not_deleted_under_a_bot_that_is_being_created(
    scene: Scene, projects: Projects
) -> None:
    project, _ = await projects.create("a")
    bot = new_bot(project_id=project.id, correlation_id="c")
    async with scene.database.transaction() as connection:
        await connection.fetch(named_queries("bots")["create"], bot.platform, [bot], True)
        deleting = asyncio.create_task(projects.delete(project.id))
        await scene.until_blocked(deleting)
    with pytest.raises(ProjectInUse):
        await deleting
    (found,) = await scene.store.bots.page(BotPage(project_id=project.id))
    assert found.ended_at is None
