"""The REST API. It holds no logic: it reads a request, calls the pool and writes the answer."""

from botpool.api.app import create_app, create_worker_app

__all__ = ["create_app", "create_worker_app"]
