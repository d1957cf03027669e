"""A PostgreSQL server: connections to one, and one of our own."""
