"""Functions of Flower that Pomona uses: a release that moves any of them fails here, by name."""

import ast
import inspect
import logging
import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest

import pomona_federation
from pomona_federation import flower_internals

pytest.importorskip("flwr")
SOURCE = Path(pomona_federation.__file__).parent


def used():
    """Every name that a file of the deployment imports from Flower, with the file."""
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "flwr" in source else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
                yield from ((path.name, node.module, alias.name) for alias in node.names)
            assert not isinstance(node, ast.Import) or not any(
                a.name.startswith("flwr") for a in node.names
            ), path


@pytest.mark.parametrize(("file", "module", "name"), sorted(set(used())))
def test_flower_has_what_is_imported(file, module, name):
    imported = import_module(module)
    if not hasattr(imported, name):
        import_module(f"{module}.{name}")


REPLACED = [
    ("flwr.supernode.fleet_http_connection", "FleetHttpClient"),
    ("flwr.superlink.extensions", "get_middleware"),
    ("flwr.supercore.state.alembic.utils", "_migration_bind"),
    ("uvicorn", "run"),
]


@pytest.mark.parametrize(("module", "name"), REPLACED)
def test_what_is_replaced_is_there_and_named_in_one_module(module, name):
    assert callable(getattr(import_module(module), name))
    files = [
        path.name for path in SOURCE.rglob("*.py") if name in path.read_text() and name != "run"
    ]
    assert set(files) <= {"flower_internals.py"}


def test_superlink_asks_for_its_middleware_and_for_uvicorn_by_these_names():
    from flwr.superlink import main
    from flwr.superlink.cli import flower_superlink

    cli = inspect.getsource(import_module(flower_superlink.__module__))
    assert "uvicorn.run(" in cli
    assert "extensions.get_middleware()" in inspect.getsource(main) + cli


def test_a_connection_is_made_of_these_functions():
    """Flower's client is looked up in its module; what it yields has the order of our record."""
    from flwr.supernode import fleet_http_connection as module

    text = inspect.getsource(module.http_request_response)
    assert text.count("FleetHttpClient.from_server_address(") == 1
    yielded = text.split("yield (")[1].split(")")[0]
    names = [name.strip() for name in yielded.split(",") if name.strip()]
    assert names == [
        *("node.node_id", "receive", "send", "get_run", "get_fab", "pull_object", "push_object"),
        "confirm_message_received",
    ]
    assert len(names) == len(fields(flower_internals.Connection))
    order = list(inspect.signature(module.http_request_response).parameters)
    assert order[:4] == ["server_address", "insecure", "root_certificates", "authentication_keys"]
    from flwr.supercore.protobuf.client import ProtobufClient

    assert "self._client = httpx.Client(" in inspect.getsource(ProtobufClient)


def test_requests_to_further_paths_are_logged_only_where_they_fail():
    log_filter = flower_internals.FailuresOf(("/v1/x",))

    def line(path, status):
        args = ("127.0.0.1:1", "POST", path, "1.1", status)
        return logging.makeLogRecord(
            {"name": "uvicorn.access", "msg": '%s - "%s %s HTTP/%s" %d', "args": args}
        )

    assert not log_filter.filter(line("/v1/x", 200))
    assert log_filter.filter(line("/v1/x", 500))
    assert log_filter.filter(line("/v1/y", 200))
    assert log_filter.filter(logging.makeLogRecord({"msg": "started", "args": ()}))


SUPERLINK = """
import sqlite3, sys
from flwr.superlink import cli
from pomona_federation import flower_internals
made = {}

def superlink():
    from flwr.supercore.sql_mixin import SqlMixin

    class Own(SqlMixin):
        def get_metadata(self):
            return None

    own = Own(sys.argv[1])
    own.initialize()
    for _ in range(2):
        print(own.query("PRAGMA busy_timeout"), own.query("PRAGMA journal_mode"))

cli.flower_superlink = superlink
flower_internals.run_superlink((), {}, 7, ())
"""


@pytest.mark.long
def test_superlinks_database_is_waited_for_as_long_as_we_say(tmp_path):
    command = [sys.executable, "-c", SUPERLINK, str(tmp_path / "link.db")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["[{'timeout': 7000}] [{'journal_mode': 'wal'}]"] * 2


def test_an_app_has_ten_minutes_to_start_and_one_to_show_that_it_lives(monkeypatch):
    """On a machine with a load of 17 on two cores it took over 30 s, and never began."""
    from flwr.supercore.corestate import sql_corestate
    from flwr.supercore.object_store import ObjectStoreFactory

    for name in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
        monkeypatch.setattr(sql_corestate, name, getattr(sql_corestate, name))
    flower_internals.patient_starts()
    unused = dict.fromkeys(sql_corestate.SqlCoreState.__abstractmethods__)
    state = type("State", (sql_corestate.SqlCoreState,), unused)(
        ":memory:", ObjectStoreFactory().store()
    )
    state.initialize()
    task, clock = state.create_task("flwr-serverapp", 1), sql_corestate.now()
    monkeypatch.setattr(sql_corestate, "now", lambda: clock)
    assert state.claim_task(task)
    for seconds, count in ((590, 1), (20, 0)):
        clock += timedelta(seconds=seconds)
        assert bool(state.get_tasks(statuses=["starting"])) == bool(count)
    assert state.claim_task(task)
    assert state.activate_task(task)
    for seconds, count in ((50, 1), (20, 0)):
        clock += timedelta(seconds=seconds)
        assert bool(state.get_tasks(statuses=["running"])) == bool(count)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # Flower's configuration
def test_superlink_killed_while_it_makes_its_tables_starts_again(tmp_path, monkeypatch):
    """It had begun with the tables that it had, and could never start again."""
    from flwr.supercore.state.alembic import utils
    from sqlalchemy import Engine, create_engine, event, inspect

    monkeypatch.setattr(utils, "_migration_bind", flower_internals.one_transaction)
    database, statements = create_engine(f"sqlite:///{tmp_path / 'link.db'}"), []

    def kill(_connection, _cursor, statement, *_):
        statements.append(statement)
        if sum("CREATE TABLE" in s for s in statements) == 5:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", kill)
    try:
        with pytest.raises(KeyboardInterrupt):
            utils.run_migrations(database)
    finally:
        event.remove(Engine, "before_cursor_execute", kill)
    utils.run_migrations(database)
    assert {"node", "run", "alembic_version"} < set(inspect(database).get_table_names())
