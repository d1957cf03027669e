"""PostgreSQL, the only state: connections, schema, and one method a query."""

from botpool.store.database import Database, connect
from botpool.store.keeping import keep_embedded_postgres
from botpool.store.migrations import check_schema, migrate
from botpool.store.opening import open_database
from botpool.store.store import Store

__all__ = [
    "Database",
    "Store",
    "check_schema",
    "connect",
    "keep_embedded_postgres",
    "migrate",
    "open_database",
]
