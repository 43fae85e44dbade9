"""Functions of Flower that Pomona uses: a release that moves any of them fails here, by name."""

import ast
import inspect
import logging
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

import pomona_federation
from pomona_federation import flower_internals

pytest.importorskip("flwr")
SOURCE = Path(pomona_federation.__file__).parent
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")


def used():
    """Every name that a file of the deployment imports from Flower, with the file."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
                yield from ((path.name, node.module, alias.name) for alias in node.names)
            assert not isinstance(node, ast.Import) or not any(a.name.startswith("flwr") for a in node.names), path


@pytest.mark.parametrize(("file", "module", "name"), sorted(set(used())))
def test_flower_has_what_is_imported(file, module, name):
    found = import_module(module)
    if not hasattr(found, name):
        import_module(f"{module}.{name}")


def calls(function, name):
    """The arguments of all calls of a name in a function, as source."""
    nodes = ast.walk(ast.parse(inspect.getsource(function)))
    return [[ast.unparse(a) for a in n.args] for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == name]


def test_a_supernodes_worker_is_made_of_what_is_replaced():
    """It calls the function that is wrapped by keywords, and sleeps for these seconds and no others."""
    from flwr.supernode import start_client_internal as node

    assert calls(node.start_client_internal, "_pull_and_store_message") == [[]]
    assert calls(node.start_client_internal, "_push_messages") == [[]]
    assert {"state", "object_store"} <= set(inspect.signature(node._push_messages).parameters)
    assert {"receive", "get_run", "get_fab", "state", "object_store"} <= set(
        inspect.signature(node._pull_and_store_message).parameters
    )
    assert list(inspect.signature(node._insert_message).parameters) == ["msg", "state", "store"]
    waits = [float(seconds) for (seconds,) in calls(node, "time.sleep")]
    assert set(waits) == {flower_internals.IDLE, flower_internals.REPLY}
    assert calls(node.start_client_internal, "time.sleep") == [["3"]]
    assert {name for name in dir(node.time) if f"time.{name}(" in inspect.getsource(node)} == {"sleep"}


def test_superexec_asks_its_factory_and_does_what_an_executor_does_in_this_order():
    from flwr.supercore.superexec import run_superexec as module
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    assert len(calls(module.run_superexec, "get_executor")) == 1
    called = [
        name for name in ("executor.reconcile", "client.AcquireTask", "plugin.launch_task") if calls(module, name)
    ]
    assert called == ["executor.reconcile", "client.AcquireTask", "plugin.launch_task"]
    assert list(inspect.signature(module.run_superexec).parameters)[:2] == ["runtime_api_address", "insecure"]
    assert list(inspect.signature(run_clientapp).parameters)[:3] == ["runtime_api_address", "token", "insecure"]
    assert "superexec_auth_secret" in inspect.signature(module.run_superexec).parameters
    assert calls(run_clientapp, "pull_task_input") == [["client"]]
    names = [name for name in ("pull_task_input", "install_from_fab", "client_app") if calls(run_clientapp, name)]
    assert names == ["pull_task_input", "install_from_fab", "client_app"]
    assert module._TASK_POLL_INTERVAL_ENV == "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
    assert module._MIN_TASK_POLL_INTERVAL_SECONDS == 0.01


def test_requests_to_further_paths_are_logged_only_where_they_fail(monkeypatch):
    from flwr.supercore import http_logging

    monkeypatch.setattr(http_logging, "ROUTINE_ACCESS_PATHS", http_logging.ROUTINE_ACCESS_PATHS)
    shown = http_logging.RoutineAccessFilter(False)

    def line(path, status):
        args = ("127.0.0.1:1", "POST", path, "1.1", status)
        return logging.makeLogRecord({"name": "uvicorn.access", "msg": '%s - "%s %s HTTP/%s" %d', "args": args})

    assert shown.filter(line("/v1/x", 200))
    flower_internals.leave_out_of_the_log("/v1/x")
    assert not shown.filter(line("/v1/x", 200))
    assert shown.filter(line("/v1/x", 500))
    assert shown.filter(line("/v1/y", 200))


def test_superlinks_database_is_waited_for_as_long_as_we_say(monkeypatch, tmp_path):
    from flwr.supercore import sql_mixin

    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    flower_internals.wait_for_database(7)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        sql_mixin._set_sqlite_pragmas(connection, None)
        said = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("busy_timeout", "journal_mode")}
    assert said == {"busy_timeout": 7000, "journal_mode": "wal"}
