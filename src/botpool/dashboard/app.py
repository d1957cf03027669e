"""The dashboard's routes, put into the app of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.dashboard import assets, bot, bots, hosts, insights, pool, settings, slots
from botpool.dashboard.overview import Overview

if TYPE_CHECKING:
    from fastapi import FastAPI


def add_dashboard(app: FastAPI) -> None:
    """Serve the dashboard at `/`, with the store, the pool and the keys that the app has."""
    app.state.overview = Overview(app.state.store)
    app.state.insights = insights.KeptInsights(app.state.store, app.state.settings)
    for part in (assets, pool, bots, bot, slots, hosts, insights, settings):
        app.include_router(part.router)
