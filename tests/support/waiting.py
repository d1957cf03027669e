"""How tests wait for what others do."""

from __future__ import annotations

import asyncio


async def a_moment() -> None:
    """Pause before the next look.

    A test that looks on and on takes the processor from what it waits for.
    """
    await asyncio.sleep(0.02)
