"""PostgreSQL, the only state: connections, schema, and one part for each noun."""

from botpool.store.postgres.database import Database, connect
from botpool.store.postgres.embedded import keep_embedded_postgres
from botpool.store.postgres.opening import open_database
from botpool.store.schema.migrate import check_schema, migrate
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
