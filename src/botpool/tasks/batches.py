"""Calls that arrive together become one."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Generic, TypeVar

from botpool.errors import DatabaseBusy, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Passes items to `run` in batches. Items that arrive during a batch form the next one.

    `run` gets the items in the order of their arrival and returns one result for each, in that
    order. A lone item is run at once. If a batch is `Refused`, nothing of it was done, so each item
    is run again on its own and only the faulty ones fail; but all of that is begun within
    `seconds`, and what is left then fails with `DatabaseBusy`. Any other error is raised in all
    callers. If a caller is cancelled, its item is still run.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most: int = 100,
        seconds: float = 5.0,
    ) -> None:
        self._run = run
        self._most = most
        self._seconds = seconds
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Run `item` with those that arrive together with it, and return its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            # An empty context: a batch's log lines must not carry its first caller's values.
            self._worker = asyncio.create_task(self._work(), context=Context())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._run_batch(batch)
        finally:
            self._worker = None

    async def _run_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self._seconds
        try:
            results = await self._run([item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        except Refused as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for one in batch:
                    # One that is alone waits for a lock as long as the whole batch did.
                    if clock() < until:
                        await self._run_batch([one])
                    else:
                        _fail([one], DatabaseBusy())
        except Exception as error:  # noqa: BLE001 - raised in the callers
            _fail(batch, error)
        except asyncio.CancelledError:
            for _, future in [*batch, *self._waiting]:
                future.cancel()
            raise


def _fail(batch: list[tuple[Item, asyncio.Future[Result]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
