"""Faults as tables: the action on a run, the command's exit code and output, and what must still
hold.
"""

import pytest
from fault_table import PAGE, table
from process_rows import PROCESSES, Run
from rows import ROWS
from runs import outcome
from world import World, files

from representatives import drawn

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wholes():
    """Outcomes of undisturbed runs, by their settings."""
    return {}


def number(row):
    """Rows of one number are about the same fault: the gate runs one of them."""
    return row.id.split()[0]


@pytest.mark.parametrize("row", drawn(ROWS, group=number), ids=[row.id for row in ROWS])
def test_scenario(row, tmp_path, monkeypatch, capsys, wholes):
    monkeypatch.setenv("COLUMNS", "500")  # messages in one line
    world = World(tmp_path, capsys, monkeypatch, wholes)
    row.before(world)
    world.before = files(world.out) if world.out.is_dir() else {}
    with monkeypatch.context() as patch:
        row.fault(patch)
        code = world.run(row.words, *row.options, base=row.base)
    assert code == row.code, world.said
    assert all(word in world.said for word in row.said), world.said
    assert world.said.count("error[") == bool(code), world.said
    row.then(world, row)


@pytest.mark.parametrize("row", drawn(PROCESSES, group=number), ids=[row.id for row in PROCESSES])
def test_scenario_of_a_process(row, tmp_path, spawner, wholes):
    def whole(words):
        if words not in wholes:
            own = Run(spawner, tmp_path / "whole", words, whole)
            own.folder.mkdir()
            own.start()
            assert spawner.wait(own.process) == 0, own.log.read_text()
            wholes[words] = outcome(own.out)
        return wholes[words]

    run = Run(spawner, tmp_path, row.words, whole)
    run.start(row.fault)
    row.act(run)
    code, said = spawner.wait(run.process), " ".join(run.log.read_text().split())
    assert code == row.code, said
    assert all(word in said for word in row.said), said
    assert "Traceback" not in said
    row.then(run, row)


def test_no_two_rows_are_called_alike():
    ids = [row.id for row in (*ROWS, *PROCESSES)]
    assert len({*ids}) == len(ids)


def test_the_page_lists_these_rows():
    assert table() in PAGE.read_text(), "run: python federation/tests/reliability/fault_table.py"
