"""The dashboard: what people see of the pool in a browser, and what they do there.

It is a front end like the API, and holds no logic: pages read the store, and forms write through
the pool. The pages are made on the server and work without JavaScript. With it they are live: our
own modules in static/ follow `/stream`, and fetch what has changed.
"""

from botpool.dashboard.app import add_dashboard

__all__ = ["add_dashboard"]
