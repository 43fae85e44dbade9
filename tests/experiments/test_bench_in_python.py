"""Benches whose suite and data are in Python."""

from dataclasses import replace
from shutil import copytree

import numpy as np
import pandas as pd
import pytest

import pomona
from pomona.core.errors import ConfigError, StorageError
from pomona.data import from_arrays, from_clients
from pomona.experiments import bench_gains, load
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import ExcludedClient, Gain
from pomona.results.comparison import comparison
from pomona.results.gain_presentation import EXCLUSION
from pomona.results.tables.by_client import gains_table
from pomona.results.web.comparison_page import TEXT, write

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(240, 3))
SITE = np.array(["b", "a", "c"])[np.arange(240) % 3]
Y = ((X[:, 0] > 0) ^ (SITE == "c")).astype(int)
QUICK = {"model": "logistic", "rounds": 3, "lr": 0.3, "batch_size": 8}
METHODS = ("separate", "fedavg", "apple")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    data = from_arrays(X, Y, SITE)
    return pomona.bench(METHODS, tmp_path_factory.mktemp("bench"), data=data, jobs=2, **QUICK)


def test_its_runs_are_those_of_pomona_run(bench):
    runs = {
        name: pomona.run(method=name, data=from_arrays(X, Y, SITE), workers=1, **QUICK)
        for name in METHODS
    }
    frame = bench.to_frame().set_index("method")
    assert list(frame.index) == list(METHODS)
    for name, run in runs.items():
        outcome = run.summary["models"][run.summary["headline"]]
        for moment in ("last", "best_validation"):
            assert frame.loc[name, f"test_at_{moment}_mean"] == outcome[moment]["test"]
        gain = pomona.gains(run, runs["separate"])[1]
        if name != "separate":
            compared = frame.loc[name, ["gain", "low", "high", "p", "verdict"]]
            assert tuple(compared) == (gain.value, gain.low, gain.high, gain.p, gain.verdict)
    assert frame.loc["fedavg", "verdict"] == "worse"
    assert pd.isna(frame.loc["separate", "gain"])
    assert frame["reason"].tolist() == ["the base itself", "", ""]
    assert bench.select(["none"]).to_frame().empty
    assert pd.isna(bench.to_frame("ditto")["gain"]).all()
    assert {*bench.to_frame("ditto")["reason"]} == {"ditto is not in this bench"}
    flat = pd.DataFrame(bench.rows).set_index("method")
    for column in (c for c in frame.columns if c.startswith("test_at_")):
        assert frame[column].tolist() == pytest.approx(flat[column].tolist(), nan_ok=True)


def test_a_renamed_folder_goes_on(bench, tmp_path):
    copytree(bench.folder, tmp_path / "renamed")
    renamed_bench = pomona.bench(
        METHODS, tmp_path / "renamed", data=from_arrays(X, Y, SITE), jobs=1, **QUICK
    )
    assert renamed_bench.results["title"] == bench.folder.name
    assert renamed_bench.to_frame().equals(bench.to_frame())


def test_in_a_notebook_it_is_a_table_with_intervals(bench):
    html = bench._repr_html_()
    row = bench.to_frame().set_index("method").loc["fedavg"]
    assert html.count("<tr>") == 1 + len(METHODS)
    assert f"{100 * row['gain']:+.2f} percentage points" in html
    assert f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}" in html
    assert load(bench.folder)._repr_html_() == html
    title, runs, folder = repr(bench).splitlines()
    assert (title, runs) == (f"<bench {bench.folder.name}", " runs: 3 finished")
    assert str(bench.folder) in folder


def test_the_same_call_goes_on_and_other_data_are_refused(bench):
    second = pomona.bench(METHODS, bench.folder, data=from_arrays(X, Y, SITE), jobs=1, **QUICK)
    assert second.results == bench.results
    with pytest.raises(StorageError, match="runs over different data"):
        pomona.bench(METHODS, bench.folder, data=from_arrays(-X, Y, SITE), jobs=1, **QUICK)


@pytest.mark.long
def test_gains_over_seeds_need_test_rows_that_are_the_same(tmp_path):
    rows = {name: (X[name == SITE], Y[name == SITE]) for name in "abc"}
    quick = {"jobs": 2, "seeds": (0, 1), **QUICK}
    fixed = pomona.bench(METHODS[:2], tmp_path / "a", data=from_clients(rows, test=rows), **quick)
    assert fixed.to_frame()["seeds"].tolist() == [2, 2]
    assert fixed.to_frame()["low"].notna().tolist() == [False, True]
    split_bench = pomona.bench(METHODS[:2], tmp_path / "b", data=from_clients(rows), **quick)
    frame = split_bench.to_frame()
    assert frame["test_at_last_mean"].notna().all()
    assert frame["gain"].isna().all()
    assert frame["reason"][1].startswith("each seed has other test samples; give all seeds one")
    text = write(split_bench, tmp_path / "page").with_name(TEXT).read_text()
    section = text.partition("## Does it beat training alone?")[2].partition("## ")[0]
    assert "Not compared: FedAvg in all: each seed has other test samples" in section
    assert all(advice in section for advice in ("pomona data show --save", "partition.name=file"))
    assert "|" not in section


@pytest.mark.long
def test_rows_columns_and_a_search_are_those_of_a_suite(tmp_path):
    bench = pomona.bench(
        {"separate": {}, "strong": {"method": {"name": "ditto", "lambda": 2}}},
        tmp_path,
        data="digits",
        clients=3,
        scenarios={"iid": {"partition": "iid"}, "skew": {"partition": "dirichlet"}},
        search={"lr": [0.1, 0.3]},
        points=2,
        jobs=2,
        **{**QUICK, "rounds": 1},
    )
    frame = bench.to_frame()
    assert list(zip(frame["scenario"], frame["method"], strict=True)) == [
        (s, m) for s in ("iid", "skew") for m in ("separate", "strong")
    ]
    assert (frame["state"] == "finished").all()
    assert {len(result["search"]) for result in bench.results["results"]} == {2}
    with pytest.raises(ConfigError, match="'own:Own' needs a short name"):
        pomona.bench(["own:Own"], tmp_path / "none", rounds=1)
    with pytest.raises(ConfigError, match="unknown method 'aple'"):
        pomona.bench(["aple"], tmp_path / "b", data="digits")
    with pytest.raises(ConfigError, match="unknown key 'rouns'"):
        pomona.bench(["apple"], tmp_path / "b", rouns=3)


def test_a_gain_has_the_decimals_of_its_interval():
    row = {"gain": 0.5, "low": -9.1234, "high": 10.1234, "verdict": "cannot tell"}
    cells = bench_gains.gain_cells(row, METRICS["mae"])
    assert cells == ["+0.50", "-9.12 to +10.12", "cannot tell"]


def test_verdicts_of_a_scenario_hold_together(bench, monkeypatch):
    """Of the p-values 0.03 and 0.04 both are below 0.05; twice the smaller is not (Holm)."""
    p = iter((0.03, 0.04))
    monkeypatch.setattr(
        bench_gains, "gains", lambda *_: ([], Gain(0.1, 0.01, 0.19, 100, p=next(p)))
    )
    verdicts = bench.to_frame().set_index("method")["verdict"]
    assert {verdicts["fedavg"], verdicts["apple"]} == {"cannot tell"}


def test_a_table_of_gains_names_the_clients_that_they_leave_out(bench, monkeypatch):
    mean = Gain(0.1, 0.01, 0.19, 90, clients=2, excluded=(ExcludedClient(1, 4, 2),))
    monkeypatch.setattr(bench_gains, "gains", lambda *_: ([], mean))
    notes = " ".join(gains_table(comparison(bench)).notes)
    assert (
        f"FedAvg in all, APPLE in all: mean over 2 of 3 clients; left out {EXCLUSION}: b." in notes
    )


def test_its_page_has_the_same_gains_and_none_without_the_runs(bench, tmp_path):
    table = gains_table(comparison(bench))
    frame = bench.to_frame().set_index("method")
    sides = "personal model, after local training, round 3, the last"
    assert frame.loc["apple", "judged"] == frame.loc["apple", "base"] == sides
    assert any(note.endswith(f"APPLE in all: {sides}, against {sides}.") for note in table.notes)
    assert [row[1] for row in table.rows] == ["FedAvg", "APPLE"]
    for row in table.rows:
        figures = frame.loc[row[1].lower()]
        gain, low, high = (
            f"{100 * figures[key]:+.2f}".replace("-", "\u2212") for key in ("gain", "low", "high")
        )
        assert row[2:] == ["1", f"{gain} percentage points", f"{low} to {high}", figures["verdict"]]
    empty_table = gains_table(comparison(replace(bench, folder=tmp_path)))
    reason = "the folders of its runs are missing"
    all_missing = f"Not compared: FedAvg in all, APPLE in all: {reason}."
    assert (empty_table.rows, empty_table.notes) == ([], [all_missing])
    lying = [{**r, "settings": {**r["settings"], "attack": {}}} for r in bench.results["results"]]
    beside_liars = replace(bench, results={**bench.results, "results": lying})
    table_of_liars = gains_table(comparison(beside_liars))
    assert not table_of_liars.rows
    assert "clients lie" in table_of_liars.notes[0]
