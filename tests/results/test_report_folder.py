"""Pages of real runs, and figures of an earlier page, which are removed when the page is
rewritten.
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from learned_results import showing
from matplotlib.figure import Figure
from report_results import comparison, result
from test_report_page import check

import pomona
from pomona.cli.progress import LivePageCallback, following
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.record.result import Result
from pomona.results import table
from pomona.results.figures.plot import FORMATS, INDEX, ReportFigure, listed, parse_formats, save
from pomona.results.figures.sections import distinct
from pomona.results.web.report_page import LiveProgress, refresh, write

pytestmark = pytest.mark.long

TINY = {
    "data": {"name": "digits", "train_limit": 240, "test_limit": 120, "validation_share": 0.2},
    "clients": 4, "rounds": 2, "batch_size": 16, "workers": 1,
    "model": {"name": "mlp", "hidden": [8]},
}  # fmt: skip
NUMBERS = ("csv",)
FIGURES = {
    "fedamp": {"attention-heatmap", "attention-trajectories", "coupling-values"},
    "fedfomo": {
        "weights-heatmap",
        "weights-trajectories",
        "affinity-heatmap",
        "affinity-trajectories",
    },
    "fedala": {"ala-weight-values", "ala-epochs-values"},
    "apfl": {"alpha-values"},
    "cfl": {"update-norm-values", "cluster-norms-values"},
    "partialfed": {"gates-values"},
}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: pomona.run(resolve(TINY, {"method": {"name": name}})) for name in FIGURES}


def stems(folder: Path) -> set[str]:
    return {p.stem for p in (folder / "figures").glob("*.csv")}


def test_every_real_run_shows_what_it_learned_and_the_page_stays_small(
    results: dict[str, Result], tmp_path: Path
) -> None:
    path = write(list(results.values()), tmp_path, NUMBERS)
    page = check(path)
    expected = {f"{figure}-{name}" for name, figures in FIGURES.items() for figure in figures}
    assert expected <= stems(tmp_path)
    assert {f"figure-{name}" for name in expected} <= {f["id"] for f in page.all("figure")}
    assert path.stat().st_size < 8e5


@pytest.mark.parametrize("name", FIGURES)
def test_the_table_agrees_with_the_runs_own_summary(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    for row in table([result]):
        mine = result.summary["models"][f"{row['model']}, {row['when']}"]
        assert (row["last"], row["round"]) == (mine["last"]["test"], mine["last"]["round"])
        assert (row["best_on_test"], row["test_round"]) == (
            mine["best_test"]["test"],
            mine["best_test"]["round"],
        )
        assert (row["test_at_best_validation"], row["best_validation"]) == (
            mine["best_validation"]["test"],
            mine["best_validation"]["validation"],
        )
        assert (row["worst"], row["percentile_10"]) == (
            mine["clients"]["worst"],
            mine["clients"]["percentile_10"],
        )


def stub(name: str) -> ReportFigure:
    return ReportFigure(name, "A title", "A caption.", "In words.", Figure(), [{"x": 1}])


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_figures_of_an_earlier_page_are_deleted(tmp_path: Path) -> None:
    save([stub("curves"), stub("dr-heatmap")], tmp_path)
    (tmp_path / "mine.png").write_bytes(b"not the report's")
    (tmp_path / "notes").mkdir()
    save([stub("curves"), stub("labels")], tmp_path)
    page_files = {f"{name}.{suffix}" for name in ("curves", "labels") for suffix in FORMATS}
    assert names(tmp_path) == page_files | {INDEX, "mine.png", "notes"}
    assert listed(tmp_path) == page_files


def test_figures_of_a_page_that_was_cut_short_are_deleted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save([stub("curves")], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            "pomona.results.figures.plot.csv_text", lambda _: Path("/").write_text("no file")
        )
        with pytest.raises(IsADirectoryError):
            save([stub("labels")], tmp_path)
    assert "labels.png" in names(tmp_path)
    save([stub("spread")], tmp_path)
    assert names(tmp_path) == {f"spread.{suffix}" for suffix in FORMATS} | {INDEX}


@pytest.mark.parametrize(
    "text",
    [
        '["../victim.csv"]',
        '{"../victim.csv": "", "victim.txt": "", "..": "", "a/../../victim.csv": ""}',
        "{",
        "7",
        "\xff",
    ],
)
def test_a_list_that_was_tampered_with_harms_nobody(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    victims = [tmp_path / "victim.csv", folder / "victim.txt"]
    for victim in victims:
        victim.write_text("keep")
    (folder / INDEX).write_bytes(text.encode("latin-1"))
    save([stub("curves")], folder)
    assert all(victim.read_text() == "keep" for victim in victims)
    assert listed(folder) == {f"curves.{suffix}" for suffix in FORMATS}


def test_writing_a_page_again_forgets_the_figures_of_the_run_before(tmp_path: Path) -> None:
    bare = replace(result("separate", n=2, rounds=1, classes=2), evaluations=[], final=[])
    write([showing([{"alpha": range(3)}], n=3)], tmp_path, NUMBERS)
    assert "alpha-values" in stems(tmp_path)
    write([bare], tmp_path, NUMBERS)
    assert stems(tmp_path) == {"curves", "labels"}


def test_no_two_figures_have_one_name() -> None:
    assert [
        p.name for p in distinct([stub("a"), stub("b"), stub("a"), stub("a-2"), stub("a")])
    ] == ["a", "b", "a-2", "a-2-2", "a-3"]


def test_run_live_leaves_the_whole_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pomona.cli import main

    pages = list[int | None]()

    def record_page(result: Result, folder: Path, live: LiveProgress | None) -> Path:
        pages.append(live and live.seconds)
        assert len(result.rounds) > 0
        return refresh(result, folder, live)

    monkeypatch.setattr("pomona.cli.progress.refresh", record_page)
    options = "data.train_limit=240 data.test_limit=120 clients=4 rounds=2 model.name=mlp workers=1"
    command = f"run fedavg --data digits {options} --live --out {tmp_path / 'run'} --figures"
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "CSV, svg"])
    # Two rounds take less than the least time between pages: one page of the first, and one that
    # reads itself no more.
    assert pages == [3, None]
    assert "Running" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert {"curves.csv", "curves.svg"} < names(tmp_path / "run" / "figures")
    assert not any(name.endswith((".png", ".pdf")) for name in names(tmp_path / "run" / "figures"))


def test_without_a_form_the_page_is_alone(tmp_path: Path) -> None:
    check(write(comparison(rounds=2)[:1], tmp_path))
    assert names(tmp_path) == {"report.html"}


def test_a_live_page_shows_the_curves_until_the_run_ends(tmp_path: Path) -> None:
    run = replace(result("apple", n=3, rounds=3), summary={})
    noon = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
    running_page = refresh(run, tmp_path, LiveProgress(3, noon, 60)).read_text(encoding="utf-8")
    assert f'data-seconds="3" data-written="{noon.timestamp()}" data-patience="60"' in running_page
    assert "<strong>Running</strong>: round 3 of 3 is done, written at 12:00:30 UTC" in running_page
    assert "cut short" not in running_page
    assert running_page.count("<figure") == 1
    assert '<details class="fold" id="training" open>' in running_page
    ended_page = refresh(run, tmp_path, None).read_text(encoding="utf-8")
    assert "Running" not in ended_page
    assert "was cut short" in ended_page
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_follower_writes_when_it_is_due_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written = [97.0], list[tuple[float, float | None]]()

    def refreshed(result: str, folder: Path, live: LiveProgress | None) -> None:
        clock[0] += 0.5
        written.append((clock[0], live and live.patience))
        assert live is None or live.seconds == 3

    monkeypatch.setattr("pomona.cli.progress.load", str)
    monkeypatch.setattr("pomona.cli.progress.refresh", refreshed)
    monkeypatch.setattr("pomona.cli.progress.monotonic", lambda: clock[0])
    row = result("apple", n=2, rounds=1).rounds[0]
    with following(tmp_path) as (follower,):
        assert isinstance(follower, LivePageCallback)
        for moment in (100.0, 103.5, 109.0, 110.0, 119.5, 121.0):
            clock[0] = moment
            follower.on_round_end(row, [])
    # A page that takes 0.5 s is written every 0.5 / 0.05 = 10 s, and once more at the end. The
    # longest waits so far are 3 s (30 is below the least), 10 s and 11 s.
    assert written == [(100.5, 60), (110.5, 100), (121.5, 110), (122.0, None)]
    with following(None) as no_followers:
        assert no_followers == ()


def test_forms_are_those_that_exist() -> None:
    assert parse_formats("") == ()
    assert parse_formats("pdf,svg, svg") == ("svg", "pdf")
    with pytest.raises(ConfigError, match="png, svg, pdf, csv; unknown: gif, jpg"):
        parse_formats("png,jpg,gif")
