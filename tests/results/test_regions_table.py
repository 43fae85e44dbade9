"""The report's table of masks: its numbers match the record."""

import pytest

import pomona
from masks import archive, settings
from pomona.config import resolve
from pomona.metrics import overlap
from pomona.results.run_numbers import runs
from pomona.results.tables.by_task import regions
from pomona.results.web.report_page import page
from pomona.simulation import run


@pytest.mark.parametrize("monai", [True, False])
def test_each_client_and_class_has_the_figures_of_the_record(tmp_path, monkeypatch, monai):
    if monai:
        pytest.importorskip("monai")
    else:
        monkeypatch.setattr(overlap, "find_spec", lambda _: None)
    result = run(
        resolve(settings(archive(tmp_path / "masks.npz", n=36)), {"rounds": 1}), tmp_path / "run"
    )
    prepared = runs([pomona.load(result.folder)])
    grid = regions(prepared)
    finals = {
        f["client"]: f["regions"]
        for f in result.final
        if f["split"] == "test" and (f["model"], f["when"]) == tuple(result.about["headline"])
    }
    assert [row[:2] for row in grid.rows] == [
        [f"client {i}", f"class {k}"] for i in range(3) for k in (1, 2)
    ]
    for row, (client, k) in zip(grid.rows, [(i, k) for i in range(3) for k in (1, 2)], strict=True):
        figures = finals[client]
        assert row[2] == str(figures["seen"][k])
        dice = figures["dice"][k]
        assert row[3].startswith("-" if dice is None else f"{dice:.3f}")
        assert len(row) == len(grid.header) == (7 if monai else 5)
        if monai:
            distance = figures["hd95"][k]
            assert row[5] == ("-" if distance is None else f"{distance:.1f}")
    assert any("need MONAI" in note for note in grid.notes) is not monai
    assert "Class by class" in page(prepared)


def test_other_tasks_have_no_such_table():
    assert regions([]).rows == []
