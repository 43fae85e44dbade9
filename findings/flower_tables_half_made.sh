#!/usr/bin/env bash
# One would guess that a SuperLink whose process ends while it makes its SQLite tables for the first time
# makes them at its next start: SQLite can create tables in a transaction, and Flower records the revision.
# Each table is committed by itself before any revision is recorded, and each later start begins with the
# first table again: "table node already exists". Remedy: remove the database, or run the migrations on one
# connection after BEGIN.
# Versions: flwr 1.42.0, SQLAlchemy 2.1.9, alembic 1.20.1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" flwr==1.42.0 SQLAlchemy==2.1.9 alembic==1.20.1
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import os
from importlib.metadata import version

from flwr.supercore.state.alembic.utils import run_migrations
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError

database, tables = create_engine("sqlite:///superlink.db"), []


def ends(_connection, _cursor, statement, *_):
    tables.extend([statement] * ("CREATE TABLE" in statement))
    if len(tables) == 4:
        os._exit(0)  # as after a SIGKILL


child = os.fork()
if not child:
    event.listen(Engine, "before_cursor_execute", ends)
    run_migrations(database)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
try:
    run_migrations(database)
except OperationalError as fault:
    print("flwr", version("flwr"), "alembic", version("alembic"), "second start:", fault.orig)
    assert "table node already exists" in str(fault.orig)
else:
    raise SystemExit("the second start made its tables")
PY
