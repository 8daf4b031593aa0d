"""The address of the fleet's PostgreSQL server, and the database objects that the fleet adds to those of the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from rolecall.errors import Hint, StorageError, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module
from rolecall.store.postgres import PostgresBackend, PostgresServer, parse_address

if TYPE_CHECKING:
    import dbos
    from sqlalchemy import exc as sql_errors
else:  # every step's process imports this module, so these are imported on first use
    dbos = Module("dbos")
    sql_errors = Module("sqlalchemy.exc")

DBOS_SCHEMA = "rolecall_dbos"
CHANNEL = "rolecall_news"
_SCHEMA = "rolecall"
_MIGRATION_LOCK, LEADER_LOCK = 0x526F6C6563616C01, 0x526F6C6563616C02
_VERSION = 2
"""The version of the fleet's database objects: `_NEWS` and the DBOS tables. Raise it whenever either changes; a machine
refuses a database with a newer version."""

# Any program that moves a ref for which the fleet waits wakes the fleet.
_NEWS = f"""
CREATE OR REPLACE FUNCTION {_SCHEMA}.fleet_news() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  PERFORM pg_notify('{CHANNEL}', TG_OP || ' ' || CASE TG_OP WHEN 'DELETE' THEN OLD.name ELSE NEW.name END);
  RETURN NULL;
END $body$;
CREATE OR REPLACE TRIGGER fleet_put AFTER INSERT ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (NEW.name LIKE 'queue/%' OR NEW.name LIKE 'fleet/%') EXECUTE FUNCTION {_SCHEMA}.fleet_news();
CREATE OR REPLACE TRIGGER fleet_moved AFTER UPDATE ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (NEW.name LIKE 'slot/%' OR NEW.name LIKE 'queue/%' OR NEW.name LIKE 'fleet/%')
  EXECUTE FUNCTION {_SCHEMA}.fleet_news();
CREATE OR REPLACE TRIGGER fleet_removed AFTER DELETE ON {_SCHEMA}.refs FOR EACH ROW
  WHEN (OLD.name LIKE 'slot/%' OR OLD.name LIKE 'queue/%') EXECUTE FUNCTION {_SCHEMA}.fleet_news();
COMMENT ON FUNCTION {_SCHEMA}.fleet_news() IS '{_VERSION}';
"""
_FOUND_VERSION = f"SELECT obj_description(to_regprocedure('{_SCHEMA}.fleet_news()'), 'pg_proc')"

# -- the address --


TIMEOUTS: Mapping[str, int] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Limits that detect a broken connection within seconds; TCP alone takes about a quarter of an hour."""
ABANDONED = 5
"""Seconds after which the server rolls back an idle transaction. Otherwise, a machine that is cut off in the middle of
a transaction would hold locks for which all the others wait."""


_KEEPALIVES = ("tcp_keepalives_idle=5", "tcp_keepalives_interval=2", "tcp_keepalives_count=3")
"""The same limits for the server, which waits for hours otherwise. They end a session whose machine has gone in the
middle of a message or a pipeline, when the transaction is not idle."""


def with_timeouts(url: str) -> str:
    """Return the address with our timeouts added, except those that the address sets itself."""
    parts = _parts(url)
    added = {key: value for key, value in TIMEOUTS.items() if key not in parts}
    return make_conninfo(url, **added, options=session_options(url))


def session_options(url: str, *more: str) -> str:
    """Return the options of a session: those in the address, the transaction timeout, keepalives, and `more`."""
    given = str(_parts(url).get("options") or "")
    own = (f"idle_in_transaction_session_timeout={ABANDONED}s", *_KEEPALIVES, *more)
    return " ".join([given, *(f"-c {option}" for option in own)]).strip()


def mask_address(url: str) -> str:
    """Return an address without its user and password, for display."""
    _parts(url)  # raises an error if the address is not a PostgreSQL address
    return str(PostgresServer(url))


def _parts(url: str) -> Mapping[str, Any]:
    if not config.is_postgres(url):
        raise UsageError(
            "a fleet needs the address of a PostgreSQL database", hint=Hint("Give one", "name_database")
        )
    return parse_address(url)


# -- the schema --


def migrate(url: str) -> None:
    """Create missing tables. The first machine does this while the others wait."""
    logging.getLogger("dbos").setLevel(logging.ERROR)
    PostgresBackend(with_timeouts(url)).close()  # creates the store's tables, under a lock of its own
    try:
        with psycopg.connect(with_timeouts(url), autocommit=True) as db:
            # Poll for the lock. A statement that waits for it would be an open transaction, and building an index
            # concurrently would wait for that transaction in turn.
            while not _answer(db, f"SELECT pg_try_advisory_lock({_MIGRATION_LOCK})"):
                time.sleep(0.2)
            found = int(_answer(db, _FOUND_VERSION) or 0)
            if found > _VERSION:
                raise StorageError(
                    f"the fleet in {mask_address(url)} has version {found}; "
                    f"this program knows versions up to {_VERSION}",
                    hint="Upgrade Rolecall on this machine: pip install --upgrade 'rolecall[fleet]'.",
                )
            if found < _VERSION:
                with db.transaction():
                    db.execute(_NEWS)
            dbos.DBOS.migrate(url, schema=DBOS_SCHEMA)
    except (psycopg.Error, sql_errors.SQLAlchemyError) as error:
        raise StorageError(
            f"the fleet's tables cannot be created in {mask_address(url)}: {PostgresServer(url).quote(error)[:500]}",
            hint="The user needs the right to create schemas in the database.",
        ) from error


def _answer(db: psycopg.Connection[Any], question: LiteralString) -> Any:
    row = db.execute(question).fetchone()
    return row[0] if row is not None else None
