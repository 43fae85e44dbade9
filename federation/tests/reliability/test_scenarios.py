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
    row.prepare(world)
    world.original = files(world.out) if world.out.is_dir() else {}
    with monkeypatch.context() as patch:
        row.fault(patch)
        code = world.run(row.arguments, *row.options, base=row.base)
    assert code == row.code, world.stderr
    assert all(phrase in world.stderr for phrase in row.phrases), world.stderr
    assert world.stderr.count("error[") == bool(code), world.stderr
    row.check(world, row)


@pytest.mark.parametrize("row", drawn(PROCESSES, group=number), ids=[row.id for row in PROCESSES])
def test_scenario_of_a_process(row, tmp_path, spawner, wholes):
    def undisturbed(arguments):
        if arguments not in wholes:
            reference = Run(spawner, tmp_path / "whole", arguments, undisturbed)
            reference.folder.mkdir()
            reference.start()
            assert spawner.wait(reference.process) == 0, reference.log.read_text()
            wholes[arguments] = outcome(reference.out)
        return wholes[arguments]

    run = Run(spawner, tmp_path, row.arguments, undisturbed)
    run.start(row.fault)
    row.act(run)
    code, output = spawner.wait(run.process), " ".join(run.log.read_text().split())
    assert code == row.code, output
    assert all(phrase in output for phrase in row.phrases), output
    assert "Traceback" not in output
    row.check(run, row)


def test_no_two_rows_are_called_alike():
    ids = [row.id for row in (*ROWS, *PROCESSES)]
    assert len({*ids}) == len(ids)


def test_the_page_has_a_line_for_each_row():
    lines = [line for line in page().splitlines() if line.startswith("| F")]
    assert all(line.count(" | ") == 3 and line.endswith(". |") for line in lines)
    text = (ROOT / "docs/internals/fault-tables.md").read_text()
    assert f"{len(lines)} faults, [a row each]" in text
    assert len(lines) == len(ROWS) + len(PROCESSES)
