"""Comparison of a real, tiny bench with reference numbers."""

import copy
import csv
import io
import json
from dataclasses import replace
from shutil import copytree
from statistics import fmean, stdev

import numpy as np
import pytest
import tomli_w

import pomona
from command_line import command
from pdflatex import compiled
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.core.table import csv_text
from pomona.data import from_arrays
from pomona.experiments import load
from pomona.experiments.bench_gains import gained, rows
from pomona.experiments.reference import AVERAGES, Reference
from pomona.metrics.metric import METRICS
from pomona.record.run_folder import load as load_run
from pomona.results.comparison import comparison
from pomona.results.figures.comparison_figures import ablations, curves, gains_by_client
from pomona.results.figures.plot import drawing
from pomona.results.run_numbers import runs
from pomona.results.significance import paired, wilcoxon_table
from pomona.results.tables.by_client import clients_table, gains_table, spread_table
from pomona.results.tables.comparison_tables import grid, privacy, records
from pomona.results.tables.cost import converged, cost_table, first_reaching, speed_table
from pomona.results.text.cautions import _methods_named, bench_cautions, cautions
from pomona.results.text.discussion import sentences
from pomona.results.web.comparison_page import _pictures, rank, write
from pomona.results.wording import size

pytestmark = pytest.mark.long


def test_the_table_has_the_papers_figures_beside_ours(tiny):
    compared = comparison(tiny)
    cells = next(
        r for r in tiny.results["results"] if (r["scenario"], r["method"]) == ("one", "separate")
    )["cells"]
    best = [100 * max(c["figures"]["curve"]["test_accuracy"]) for c in cells]
    table = grid(compared)
    assert table.header[1:3] == ["MNIST, pathological: paper", "MNIST, pathological: ours"]
    assert table.rows[0][:3] == ["Separate", "97.34", f"{fmean(best):.2f} ± {stdev(best):.2f} (2)"]
    assert [row[-2:] for row in table.rows] == [
        [p, "data missing"] for p in ("61.36", "53.83", "86.39")
    ]
    assert (2, 1) in table.marked  # the paper's best of the three rows
    assert table.rows[2][1] == "99.77*"  # it has a note
    assert "in the best round on test, as in table 1 of a paper;" in table.notes[0]


def test_the_records_are_numbers(tiny):
    lines = list(csv.DictReader(io.StringIO(csv_text(records(comparison(tiny))))))
    assert len(lines) == 9
    record = lines[0]
    assert float(record["difference"]) == pytest.approx(
        100 * float(record["best_test_mean"]) - 97.34, abs=1e-3
    )
    assert (lines[-1]["state"], lines[-1]["n"], lines[-1]["last_mean"]) == ("data missing", "0", "")


def test_clients_worse_than_alone_are_those_with_a_gain_below_zero_in_the_figure(tiny, seed_0):
    below = [
        r["gain_over_separate"] < 0
        for r in gains_by_client(seed_0, "one").rows
        if r["method"] == "FedAvg"
    ]
    assert any(below)
    lines = {(row[0], row[1]): row for row in spread_table(seed_0).rows}
    assert lines["MNIST, pathological", "FedAvg"][-1] == f"{100 * fmean(below):.0f}"
    compared = comparison(tiny)
    worst = [100 * min(compared.entry("one", "fedavg").clients()[s]) for s in (0, 1)]
    lines = {(row[0], row[1]): row for row in spread_table(compared).rows}
    assert lines["MNIST, pathological", "FedAvg"][-1] == "-"  # other test samples in each seed
    assert (
        lines["MNIST, pathological", "FedAvg"][3] == f"{fmean(worst):.2f} ± {stdev(worst):.2f} (2)"
    )
    assert lines["MNIST, pathological", "Separate"][-1] == "-"


def test_each_client_has_its_column_where_all_seeds_have_the_same(tiny):
    compared = comparison(tiny)
    assert "Seeds draw other clients" in wilcoxon_table(compared).notes[0]
    assert clients_table(compared) is None  # client 0 of seed 1 is another one
    one_seed = replace(
        compared, entries=tuple(replace(e, cells=e.cells[:1]) for e in compared.entries)
    )
    partitions = {c["figures"]["partition"] for e in one_seed.entries for c in e.cells}
    assert len(partitions) > 1  # two scenarios, each with a draw of its own
    assert clients_table(one_seed) is None
    natural = {"partition": {"name": "natural"}}
    by_nature = copy.deepcopy(
        replace(compared, entries=tuple(replace(e, settings=natural) for e in compared.entries))
    )
    assert "Seeds draw" not in wilcoxon_table(by_nature).notes[0]
    table, separate = clients_table(by_nature), by_nature.entry("one", "separate")
    assert table.header[2:] == separate.cells[0]["figures"]["clients"]
    row = next(row for row in table.rows if row[1] == "Separate")
    pairs = zip(*(separate.clients()[s] for s in (0, 1)), strict=True)
    assert row[2:] == [f"{100 * fmean(values):.2f}" for values in pairs]
    fewer = tuple(
        replace(e, cells=e.cells[:1]) if e.method == "fedavg" else e for e in by_nature.entries
    )
    table = clients_table(replace(by_nature, entries=fewer))
    assert table.notes[0].endswith("mean over 1 seed.")
    row = next(row for row in table.rows if row[1] == "Separate")
    assert row[2:] == [f"{100 * value:.2f}" for value in separate.clients()[0]]
    separate.cells[0]["figures"]["clients"].append("one more")
    assert clients_table(by_nature) is None


@pytest.mark.parametrize("partition", [{"name": "file"}, {"draw": "published"}])
def test_a_file_or_a_published_draw_has_the_same_clients_in_every_seed(tiny, partition):
    compared = comparison(tiny)
    same_clients = replace(
        compared,
        entries=tuple(replace(e, settings={"partition": partition}) for e in compared.entries),
    )
    assert "Seeds draw" not in wilcoxon_table(same_clients).notes[0]


def test_a_client_is_one_pair_whatever_the_number_of_seeds(tiny):
    compared = comparison(tiny)
    apple = compared.entry("one", "apple")
    a, b = paired(apple, apple)
    assert (
        a
        == b
        == pytest.approx(
            [fmean(values) for values in zip(*(apple.clients()[s] for s in (0, 1)), strict=True)]
        )
    )
    assert len(a) == 3
    lines = wilcoxon_table(compared).rows
    assert {(row[1], row[2]) for row in lines} == {
        ("APPLE, mu!=0", "Separate"),
        ("APPLE, mu!=0", "FedAvg"),
    }


def test_traffic_is_counted_in_models(tiny):
    table = cost_table(comparison(tiny))
    models = {row[1]: row[2:4] for row in table.rows}
    assert models["Separate"] == ["0.00", "0.00"]
    assert models["FedAvg"] == ["1.00", "1.00"]
    # and the names of the cores it wants
    assert float(models["APPLE, mu!=0"][1]) == pytest.approx(1, abs=0.02)
    assert all(float(row[7]) <= 3 for row in table.rows)


def test_rounds_and_bytes_to_an_accuracy_are_those_of_the_curves(tiny):
    compared = comparison(tiny)
    lines = {(row[0], row[1]): row[2:] for row in speed_table(compared).rows}
    for row, method in (("FedAvg", "fedavg"), ("APPLE, mu!=0", "apple")):
        entry, separate = compared.entry("one", method), compared.entry("one", "separate")
        last, floors = ([values[-1] for _, values in e.curve()] for e in (entry, separate))
        a_round = [(c["figures"]["bytes_down"] + c["figures"]["bytes_up"]) / 3 for c in entry.cells]
        cells = lines["MNIST, pathological", row]
        for (mean, volume), targets in ((cells[:2], [0.95 * e for e in last]), (cells[2:], floors)):
            first = [
                next((r for r, v in zip(rounds, values, strict=True) if v >= target), None)
                for (rounds, values), target in zip(entry.curve(), targets, strict=True)
            ]
            hits = [(r, r * cost) for r, cost in zip(first, a_round, strict=True) if r is not None]
            if not hits:
                assert (mean, volume) == ("not reached", "-")
                continue
            suffix = "" if len(hits) == 2 else " (1 of 2)"
            assert mean == f"{fmean(r for r, _ in hits):.1f}{suffix}"
            assert volume == size(fmean(n for _, n in hits))
    assert lines["MNIST, pathological", "Separate"][1] == "0 B"


@pytest.mark.parametrize(("metric", "round_"), [("auroc", 3), ("mae", 1), ("r2", 2)])
def test_99_per_cent_are_of_the_metric_that_the_bench_compares(metric, round_):
    """Within 1 % of 0.9 upwards, of 0.3 downwards; of a negative best, too."""
    values = {"auroc": [0.3, 0.8, 0.895, 0.9], "mae": [0.301, 0.3], "r2": [-2.0, -1.005, -1.0]}
    curve = values[metric]
    assert converged(range(1, len(curve) + 1), curve, METRICS[metric]) == round_
    assert converged([1], [None], METRICS[metric]) is None


def test_a_target_is_reached_by_the_first_value_that_has_it():
    assert first_reaching([2, 4, 6], [0.5, None, 0.7], 0.5) == 2
    assert first_reaching([2, 4, 6], [0.5, None, 0.7], 0.6) == 6
    assert first_reaching([2, 4], [0.5, 0.6], 0.61) is None


def test_a_suite_names_the_rows_that_are_tested(tiny):
    bench = replace(tiny, results={**tiny.results, "own": ["fedavg"]})
    lines = wilcoxon_table(comparison(bench)).rows
    assert {(row[1], row[2]) for row in lines} == {
        ("FedAvg", "Separate"),
        ("FedAvg", "APPLE, mu!=0"),
    }
    assert wilcoxon_table(comparison(replace(tiny, results={**tiny.results, "own": []}))) is None


PRIOR = {
    "title": "last year's runs",
    "average": "last",
    "scenario": {"MNIST, pathological": {"numbers": {"FedAvg": 70.0}, "minutes": {"FedAvg": 3}, "epsilon": {"FedAvg": "infinite"}}},
}  # fmt: skip


def test_a_reader_compares_with_numbers_of_their_own(tiny):
    """They take the place of those that the suite names, with their own way of counting."""
    compared = comparison(tiny, Reference.model_validate(PRIOR))
    lasts = [100 * fmean(c["figures"]["models"][c["figures"]["headline"]]["last"]["accuracy"])
             for c in compared.entry("one", "fedavg").cells]  # fmt: skip
    table = grid(compared)
    assert table.header[1:3] == ["MNIST, pathological: reference", "MNIST, pathological: ours"]
    assert table.rows[1][1:3] == ["70", f"{fmean(lasts):.2f} ± {stdev(lasts):.2f} (2)"]
    assert "as in last year's runs" in table.notes[0]
    assert cost_table(compared).rows[1][-2:] == ["3", "-"]
    assert privacy(compared).rows[0][-2:] == ["-", "infinite"]
    paragraphs = dict(sentences(compared))["MNIST, pathological"]
    assert paragraphs[0].endswith(" The reference does not state its settings; these are ours.")


def test_the_median_difference_is_between_two_and_the_leader_was_chosen(tiny):
    """The reference has our leader's number, and 10 points more for our other method: differences
    of 0 and of minus the lead less 10.
    """
    column = "MNIST, pathological"
    entries = comparison(tiny, Reference.model_validate(PRIOR)).in_scenario("one")
    ours = {e.row: 100 * fmean(e.values(AVERAGES["last"])) for e in entries if "mu" not in e.row}
    (last, low), (first, high) = sorted(ours.items(), key=lambda pair: pair[1])
    assert low < high
    reference = {**PRIOR, "scenario": {column: {"numbers": {first: high, last: high + 10}}}}
    text = " ".join(dict(sentences(comparison(tiny, Reference.model_validate(reference))))[column])
    assert f"median {(low - high - 10) / 2:+.1f} points over 2 methods" in text
    assert f"here {first} leads" in text
    assert "Over clients p = " in text
    assert "not corrected for the choice of the leader" in text


def test_numbers_of_another_bench_are_refused(tiny):
    prior = Reference.model_validate({**PRIOR, "scenario": {"one": {"numbers": {"FedAvg": 1.0}}}})
    with pytest.raises(
        ConfigError, match=r"are MNIST, pathological; MNIST, practical; .* methods Separate; FedAvg"
    ):
        comparison(tiny, prior)


def test_without_reference_numbers_ours_stand_alone(tiny):
    compared = comparison(replace(tiny, results={**tiny.results, "reference": None}))
    table = grid(compared)
    columns = ["MNIST, pathological", "MNIST, practical", "PathMNIST, practical"]
    assert table.header == ["method", *columns]
    assert str(compared.count) in table.notes[0]
    assert dict(sentences(compared))["MNIST, pathological"] == []


@pytest.mark.parametrize("missing", [False, True])
def test_differences_have_a_heading_only_where_there_are_some(tiny, missing, tmp_path):
    bare = replace(tiny, results={**tiny.results, "reference": None})
    write(bare if missing else bare.select(["one", "two"]), tmp_path)
    text = (tmp_path / "comparison.md").read_text()
    assert "## Where ours differs" not in text
    assert ("## Without a result" in text) == missing


def test_numbers_of_another_metric_are_refused(tiny):
    with pytest.raises(
        ConfigError, match="the reference numbers are auroc, but separate in one recorded accuracy"
    ):
        comparison(tiny, Reference.model_validate({**PRIOR, "metric": "auroc"}))


def test_a_method_without_a_result_has_numbers_of_any_metric(tiny):
    """Every run of it failed, so it has no metric of its own."""
    results = copy.deepcopy(tiny.results)
    for result in results["results"]:
        for cell in result["cells"]:
            cell["figures"] = None
    failed = replace(tiny, results=results)
    compared = comparison(failed, Reference.model_validate({**PRIOR, "metric": "auroc"}))
    assert {row.metric.name for row in compared.entries} == {"auroc"}
    printed = {"MNIST, pathological": {"numbers": {"Separate": 1.0, "FedAvg": 9.0}}}
    low = Reference.model_validate({**PRIOR, "metric": "mae", "scenario": printed})
    table = grid(comparison(failed, low))
    assert "mean absolute error" in table.notes[0]
    assert table.marked == {(0, 1)}  # the lowest of the printed numbers


def test_differences_are_facts_of_the_runs(tiny):
    paragraphs = dict(sentences(comparison(tiny)))
    first = " ".join(paragraphs["MNIST, pathological"])
    assert "digits replaces mnist" in first
    assert "rounds 3, not 160" in first
    assert "network mlp, not lenet" in first
    assert "of 3 pairs" in first
    assert "APPLE, mu!=0, the paper's figure*: read off." in first
    assert paragraphs["PathMNIST, practical"] == [
        "Every method: data missing. Fetch MedMNIST v2 (Yang et al. 2023), 28 x 28; “pomona data "
        "list” shows where it is searched for."
    ]


def test_ranks_are_over_the_columns_that_have_results(tiny):
    ranking = rank(comparison(tiny))
    assert ranking.blocks == 2
    assert sum(ranking.mean_ranks) == pytest.approx(6)


def test_cells_that_differ_in_one_number_make_a_curve(tiny):
    compared = comparison(tiny)
    assert ablations(compared) == []  # no setting has three values


@pytest.fixture(scope="module")
def seed_0(tiny):
    """The bench of its first seed: other seeds have other test samples, and so no gain together."""
    results = [{**r, "cells": r["cells"][:1]} for r in tiny.results["results"]]
    return comparison(replace(tiny, results={**tiny.results, "results": results}))


def test_a_method_has_one_colour_in_all_pictures(seed_0):
    colours = [
        {line.get_label(): line.get_color() for line in picture(seed_0, "one").figure.axes[0].lines}
        for picture in (curves, gains_by_client)
    ]
    shared_rows = set(colours[0]) & set(colours[1])
    assert shared_rows == {"FedAvg", "APPLE, mu!=0"}
    assert all(colours[0][row] == colours[1][row] for row in shared_rows)


def test_gains_of_few_clients_are_those_of_the_table_with_names_and_whiskers(seed_0, tiny):
    picture = gains_by_client(seed_0, "one")
    axes = picture.figure.axes[0]
    runs_of = {
        e.row: load_run(tiny.folder / e.cells[0]["folder"]) for e in seed_0.in_scenario("one")
    }
    separate = runs_of.pop("Separate")
    names = separate.about["clients"]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    points = {line.get_label(): line for line in axes.lines if line.get_label() in runs_of}
    assert set(points) == set(runs_of)
    for row, run in runs_of.items():
        clients, mean = pomona.gains(run, separate)
        assert points[row].get_linestyle() == "None"
        assert list(points[row].get_ydata()) == [100 * gain.value for gain in clients]
        drawn_gains = {
            r["client"]: (r["gain_over_separate"], r["gain_low"], r["gain_high"])
            for r in picture.rows
            if r["method"] == row
        }
        assert drawn_gains == {gain.client: (gain.value, gain.low, gain.high) for gain in clients}
        table = next(
            line for line in gains_table(seed_0).rows if line[:2] == ["MNIST, pathological", row]
        )
        assert table[3].startswith(f"{100 * mean.value:+.2f}".replace("-", "\N{MINUS SIGN}"))
    assert "a hollow mark is a gain" in picture.caption


def test_where_the_table_has_no_gain_there_is_no_figure_of_gains(tiny, seed_0):
    assert gains_by_client(comparison(tiny), "one") is None  # other test samples in each seed
    assert gains_by_client(seed_0, "gone") is None


def test_gains_of_many_clients_are_a_line(seed_0, monkeypatch):
    monkeypatch.setattr("pomona.results.figures.comparison_figures.FEW", 3)
    axes = gains_by_client(seed_0, "one").figure.axes[0]
    assert axes.get_xlabel() == "share of the clients, sorted by gain"


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory):
    """Three of four labels are 1; one method still learns them, one hardly begins."""
    draw = stream(0, "doubtful")
    y = (draw.random(240) < 0.75).astype(int)
    x = draw.normal(size=(240, 5)) + y[:, None]
    return pomona.bench(
        {"separate": {"lr": 0.02}, "fedavg": {"lr": 1e-9}},
        tmp_path_factory.mktemp("doubtful"),
        data=from_arrays(x, y, np.arange(240) % 2),
        seeds=(0, 1),
        model="logistic",
        rounds=12,
        jobs=1,
    )


def test_cautions_of_a_bench_are_those_of_its_runs(doubtful, tmp_path):
    compared = comparison(doubtful)
    notes = bench_cautions(compared)
    lines = (
        ("no better than always giving one answer, which", "No better than always giving one answer, on average over clients"),
        ("still getting better", "Still getting better at the end, so more rounds may change this page"),
    )  # fmt: skip
    for phrase, sentence in lines:
        counts = {
            entry.row: sum(
                phrase in " ".join(cautions(runs([replace(r, config=r.config | {"keep": "best"})])))
                for cell in entry.cells
                for r in [load_run(doubtful.folder / cell["folder"])]
            )
            for entry in compared.entries
        }
        assert any(counts.values())
        alike = {
            k: [row for row, n in counts.items() if n == k] for k in (1, 2) if k in counts.values()
        }
        labels = [f"{' and '.join(rows)} ({k} of 2 seeds)" for k, rows in alike.items()]
        expected = "all methods" if set(counts.values()) == {2} else labels[0]
        assert f"{sentence}: {expected}." in notes
    note = (
        "Fewer than 30 test samples come from 0 and 1: rely on intervals, where there are any, not "
        "on the numbers."
    )
    assert notes[-1] == note
    (samples,) = {tuple(sizes.items()) for entry in compared.entries for sizes in entry.tested()}
    tested = f"Clients: 2, with test samples: {', '.join(f'{name} ({n})' for name, n in samples)}."
    page = write(doubtful, tmp_path)
    for text in (page.read_text(), (tmp_path / "comparison.md").read_text()):
        assert all(line.replace("'", "&#39;") in text or line in text for line in [*notes, tested])
    elsewhere = comparison(replace(doubtful, folder=tmp_path))
    assert bench_cautions(elsewhere) == []


def test_all_methods_are_those_of_the_page(doubtful, tmp_path):
    """Where one method's runs are gone, those that can be read are named."""
    compared = comparison(doubtful)
    entries = [(entry, 2, 2) for entry in compared.entries]
    rows = {entries[0][0].column: 2}
    assert _methods_named(entries, rows) == "all methods"
    assert _methods_named(entries[:1], rows) == f"{entries[0][0].row} (2 of 2 seeds)"
    for cell in entries[0][0].cells:
        copytree(doubtful.folder / cell["folder"], tmp_path / cell["folder"])
    (tmp_path / entries[0][0].cells[0]["folder"] / "events.jsonl").write_text("not a record\n")
    assert bench_cautions(comparison(replace(doubtful, folder=tmp_path)))


@pytest.mark.parametrize(("name", "length"), [("config.toml", 0), ("predictions.npz", 100)])
def test_a_damaged_cell_has_no_gain_and_its_reason(name, length, doubtful, tmp_path):
    copytree(doubtful.folder, tmp_path / "bench")
    bench = replace(doubtful, folder=tmp_path / "bench")
    cell, _ = next(r["cells"] for r in bench.results["results"] if r["method"] == "fedavg")
    path = bench.folder / cell["folder"] / name
    path.write_bytes(path.read_bytes()[:length])
    _, row = rows(bench.results, gained(bench.folder, bench.results, "separate"))
    assert (row["method"], row["gain"]) == ("fedavg", None)
    assert row["reason"] == "a record of its runs cannot be read"
    assert row["reason"] in bench._repr_html_()
    write(bench, tmp_path / "page")


def test_a_bench_says_what_overtrained_though_its_page_shows_the_best_round(tmp_path):
    """Labels without relation to the inputs: validation falls while a large network learns the
    training rows by heart; gains are of the last round.
    """
    draw = stream(4, "overtrained")
    x, y = draw.normal(size=(160, 30)), draw.integers(0, 2, 160)
    y[::2] = x[::2, 0] > 0
    compared = comparison(
        pomona.bench(
            ("separate",),
            tmp_path,
            data=from_arrays(x, y, np.arange(160) % 2),
            model={"name": "mlp", "hidden": [64]},
            rounds=60,
            lr=0.3,
            jobs=1,
        )
    )
    assert compared.count.moment != "last"
    (run,) = [
        load_run(compared.bench.folder / c["folder"]) for e in compared.entries for c in e.cells
    ]
    single = " ".join(cautions(runs([run])))
    assert ("has got worse since" in single) == any(
        "Worse on validation" in s for s in bench_cautions(compared)
    )
    assert "has got worse since" in single


def test_clients_of_two_scenarios_are_told_apart_and_many_by_their_range(tiny, monkeypatch):
    compared = comparison(tiny)
    notes = grid(compared).notes[1:]
    assert [note.partition(":")[0] for note in notes] == [
        "Clients in MNIST, pathological",
        "Clients in MNIST, practical",
    ]
    monkeypatch.setattr("pomona.results.tables.by_client.MAX_NAMES", 2)
    sizes = [n for counts in compared.entry("one", "fedavg").tested() for n in counts.values()]
    samples_text = f"3, with {min(sizes)} to {max(sizes)} test samples each."
    assert grid(compared).notes[1] == f"Clients in MNIST, pathological: {samples_text}"


@pytest.fixture(scope="module")
def pages(tiny, tmp_path_factory):
    """The folder of the bench's page and figures."""
    return write(tiny, tmp_path_factory.mktemp("page"), ("png",)).parent


def test_the_page_and_its_other_forms(tiny, pages, tmp_path):
    write(load(tiny.folder), tmp_path, ("png",))
    for name in ("comparison.md", "comparison.tex", "comparison.csv"):
        assert (pages / name).read_bytes() == (tmp_path / name).read_bytes()
    html = (pages / "comparison.html").read_text()
    assert "<script" not in html
    assert html.count("<h2") >= 7
    for text in (html, (pages / "comparison.md").read_text()):
        assert "data.name" in text
        assert "data.dir" not in text  # the page goes to others
        assert str(tiny.folder) not in text
    assert [p.name for p in (pages / "figures").glob("critical-difference.*")] == [
        "critical-difference.png"
    ]


def test_report_knows_a_bench_and_takes_a_file_of_reference_numbers(tiny, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(PRIOR))
    options = ["--out", str(tmp_path), "--reference", str(tmp_path / "mine.toml")]
    assert command("report", str(tiny.folder), *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "comparison.html")
    assert "Last year's runs next to ours." in (tmp_path / "comparison.md").read_text()
    (tmp_path / "mine.toml").write_text("averag = 'last'\n")
    assert command("report", str(tiny.folder), *options) == 2
    err = capsys.readouterr().err
    assert "mine.toml: " in err
    assert "did you mean average" in err
    run = tiny.folder / tiny.results["results"][0]["cells"][0]["folder"]
    assert command("report", str(run), *options) == 2
    assert "--reference is for the page of a bench" in capsys.readouterr().err
    assert command("report", str(run), "--scenarios") == 2
    assert "--scenarios is for the page of a bench" in capsys.readouterr().err


def test_figures_of_scenarios_with_like_names_are_apart(seed_0, monkeypatch):
    monkeypatch.setattr("pomona.results.figures.comparison_figures.slug", lambda _: "same")
    with drawing():
        names = [picture.name for picture in _pictures(seed_0, None)]
    assert len(names) > 2
    assert len(set(names)) == len(names)


def test_a_bench_is_reported_alone(tiny, tmp_path, capsys):
    assert command("report", str(tiny.folder), str(tmp_path)) != 0
    assert "give one bench, or run folders" in capsys.readouterr().err


def test_a_bench_of_numbers_is_compared_by_its_own_metric(tiny):
    """Two methods, two clients, mean absolute errors: the smaller is bold, gains are positive, the
    largest is worst.
    """
    errors = {"separate": (0.5, 0.9), "fedavg": (0.4, 1.0)}
    results = copy.deepcopy(dict(tiny.results)) | {"reference": None}
    results["results"] = [
        r
        for r in results["results"]
        if (r["scenario"], r["method"]) in {("one", m) for m in errors}
    ]
    for result in results["results"]:
        client_errors = errors[result["method"]]
        for cell in result["cells"]:
            figures = cell["figures"]
            figures |= {"metric": "mae", "clients": ["a", "b"]}
            moment = {
                "round": 3,
                "value": list(client_errors),
                "accuracy": [None, None],
                "samples": [10, 30],
                "loss": [1.0, 1.0],
            }
            figures["models"][figures["headline"]] = {"last": moment, "best_validation": None}
            figures["curve"] |= {
                "round": [1, 2, 3],
                "test_value": [2.0, 1.0, sum(client_errors) / 2],
                "test_accuracy": [None] * 3,
            }
    compared = comparison(replace(tiny, results=results))
    table = grid(compared)
    assert "mean absolute error" in table.notes[0]
    cells = [row[1] for row in table.rows if row[0] in {"Separate", "FedAvg"}]
    assert cells == ["0.7000 ± 0.0000 (2)"] * 2
    lines = {row[1]: row for row in spread_table(compared).rows}
    assert lines["FedAvg"][3] == "1.000 ± 0.000 (2)"  # the worst is the largest
    assert (
        compared.entry("one", "fedavg").values(AVERAGES["last_pooled"])
        == [pytest.approx((10 * 0.4 + 30 * 1.0) / 40)] * 2
    )
    assert curves(compared, "one").figure.axes[0].get_ylabel() == "test mean absolute error"


def test_the_tables_in_latex_are_ascii_in_an_articles_column(pages, tmp_path):
    text = (pages / "comparison.tex").read_text()
    assert text.isascii()
    assert text.count(r"\begin{table}") >= 5
    compiled(text, tmp_path)
