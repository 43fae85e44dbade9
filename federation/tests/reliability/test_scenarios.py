"""Faults as tables: the action on a run, the command's exit code and output, and what must still
hold.
"""

from pathlib import Path

import pytest
from fault_table import page
from process_rows import PROCESSES, Run
from rows import ROWS
from runs import outcome
from world import World, files

from representatives import drawn

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


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


def test_the_page_has_a_line_for_each_row():
    lines = [line for line in page().splitlines() if line.startswith("| F")]
    assert all(line.count(" | ") == 3 and line.endswith(". |") for line in lines)
    text = (ROOT / "docs/internals/fault-tables.md").read_text()
    assert f"{len(lines)} faults, [a row each]" in text
    assert len(lines) == len(ROWS) + len(PROCESSES)
