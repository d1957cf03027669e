-- name: version
-- The server's version.
SHOW server_version;

-- name: clock
-- The server's own clock, whatever the schema.
SELECT clock_timestamp() AS now;

-- name: rights
-- Whether the user may create tables and functions in the schema where they would be; NULL if there is none.
SELECT current_user::text AS user, current_schema()::text AS schema,
    coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create;

-- name: connections_left
-- How many connections the server, the database and the user may have, less those of other programs.
WITH limits AS (
    SELECT current_setting('max_connections')::integer
            - current_setting('superuser_reserved_connections')::integer
            - coalesce(current_setting('reserved_connections', true)::integer, 0) AS of_server,
        (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()) AS of_database,
        (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user) AS of_user
),
others AS (
    SELECT count(*) AS of_server,
        count(*) FILTER (WHERE datname = current_database()) AS of_database,
        count(*) FILTER (WHERE usename = current_user) AS of_user
    FROM pg_stat_activity WHERE datid IS NOT NULL AND application_name <> 'botpool'
)
SELECT greatest(0, least(
    limits.of_server - others.of_server,
    limits.of_database - others.of_database,
    limits.of_user - others.of_user
))::integer AS connections
FROM limits, others;
