"""The round that a verdict compares: the same rule for both runs, with a caution if one was better
earlier.
"""

from dataclasses import replace

import numpy as np
import pytest
from report_results import regression
from sklearn.datasets import load_diabetes

import pomona
from pomona.metrics.best_round import best
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import ExcludedClient, Gain
from pomona.record.rows import Evaluation
from pomona.results.gain_presentation import EXCLUSION, Gains, evidence, fewer_clients
from pomona.results.run_numbers import runs
from pomona.results.text.cautions import cautions
from pomona.results.text.narrative import worse_since
from pomona.results.text.verdicts import verdicts
from pomona.results.web.report_page import client_tables
from pomona.tasks import TASKS
from pomona.tasks.scores import compute

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """By ``keep``: a federated run, and local training, which memorises its 44 samples from the
    second round on.
    """
    path, bunch = tmp_path_factory.mktemp("table") / "diabetes.csv", load_diabetes()
    table = np.column_stack([bunch.data, bunch.target])
    np.savetxt(
        path, table, delimiter=",", header=",".join([*bunch.feature_names, "y"]), comments=""
    )
    data = {
        "name": "table",
        "path": str(path),
        "label_column": "y",
        "targets": "regression",
        "test_share": 0.4,
    }
    shared_settings = {
        "data": data | {"validation_share": 0.2},
        "partition": {"name": "iid"},
        "model": {"name": "mlp", "hidden": [32]},
        "clients": 4,
        "rounds": 8,
        "lr": 0.1,
        "local_epochs": 8,
        "batch_size": 16,
    }
    return {
        rule: runs(
            [
                pomona.run(pomona.Config(method=method, keep=rule, **shared_settings))
                for method in ("fedavg-ft", "separate")
            ]
        )
        for rule in ("last", "best")
    }


def test_an_overtrained_baseline_decides_nothing_and_at_the_best_rounds_there_is_no_difference(
    compared,
):
    first, noted = verdicts(compared["last"])[0], cautions(compared["last"])
    assert first.startswith("FedAvg-FT is ahead of Separate")
    assert (
        "But Separate has got worse since round 1, so this does not show whether federation helps"
        in first
    )
    assert any(
        line.startswith("Separate has got worse since round 1 (mean absolute error on val")
        for line in noted
    )
    assert (
        "Between FedAvg-FT and Separate, training alone, there is no significant difference"
        in verdicts(compared["best"])[0]
    )
    assert not any("got worse" in line for line in cautions(compared["best"]))


def test_with_keep_best_values_answers_and_closing_metrics_are_of_the_round_best_on_validation(
    compared,
):
    for run in compared["best"]:
        means = {e.round: e.mean for e in run.validation if e.round > 0}
        assert run.reported.round == min(means, key=means.__getitem__) < 8
        for client, value in run.values.items():
            outputs, targets = run.result.predictions(client)
            assert compute("mae", outputs, targets, TASKS["regression"]) == pytest.approx(
                value, rel=1e-5
            )
            (final,) = (
                f
                for f in run.result.final
                if (f["model"], f["when"], f["split"], f["client"])
                == (run.reported.model, run.reported.when, "test", client)
            )
            assert final["mae"] == pytest.approx(value, rel=1e-5)


def test_rounds_chosen_in_two_ways_are_named(compared):
    mixed = [compared["best"][0], compared["last"][1]]
    assert any(
        line.startswith("FedAvg-FT is compared in the round best on validation, Sep")
        for line in cautions(mixed)
    )


@pytest.mark.parametrize(
    ("means", "onset"),
    [
        ([0.5, 0.9, 0.8, 0.7, 0.6], 2),
        ([0.9, 0.8, 0.7, 0.6], 1),
        ([0.5, 0.9, 0.8, 0.7], None),  # three rounds are no trend
        ([0.5, 0.6, 0.7, 0.8, 0.9], None),
        ([0.5, 0.9, 0.6, 0.88, 0.61, 0.87, 0.88], None),  # it goes up and down
    ],
)
def test_a_run_has_got_worse_where_its_curve_falls_by_more_than_it_scatters(compared, means, onset):
    run = compared["last"][0]
    curve = [
        Evaluation(n, "personal", "trained", split, (0,), (9,), (None,), (v,), (v,), "accuracy")
        for n, v in enumerate(means, 1)
        for split in ("validation", "test")
    ]
    metadata = run.result.about | {
        "metric": METRICS["accuracy"].name,
        "headline": ["personal", "trained"],
    }
    assert worse_since(runs([replace(run.result, evaluations=curve, about=metadata)])[0]) == onset


def test_a_run_has_got_worse_since_the_round_that_is_its_best_elsewhere(compared):
    """In round 2 one client turns the mean against two that lose: the best round is 3."""
    run = compared["last"][0]
    means = [
        (0.5, 0.5, 0.5),
        (0.4, 0.4, 1.0),
        (0.6, 0.6, 0.55),
        *([v] * 3 for v in (0.5, 0.4, 0.3)),
    ]
    curve = [
        Evaluation(
            n, "personal", "trained", split, (0, 1, 2), (9,) * 3, (None,) * 3, v, v, "accuracy"
        )
        for n, v in enumerate(map(tuple, means), 1)
        for split in ("validation", "test")
    ]
    metadata = run.result.about | {"metric": "accuracy", "headline": ["personal", "trained"]}
    [changed] = runs([replace(run.result, evaluations=curve, about=metadata)])
    assert best([e.point for e in changed.validation], METRICS["accuracy"]).round == 3
    assert worse_since(changed) == 3


def test_what_a_mean_gain_rests_on_stands_beside_it_and_who_is_left_out_is_named(compared):
    run = compared["last"][0]
    mean = Gain(
        0.1,
        0.0,
        0.2,
        1200,
        1200,
        8,
        0.05,
        clients=2,
        excluded=(ExcludedClient(1, 2, 1), ExcludedClient(3, 0, None)),
    )
    classes, times = (
        replace(run, result=replace(run.result, about={**run.result.about, "targets": targets}))
        for targets in ("classes", "survival")
    )
    assert evidence(classes, mean) == (
        "This rests on 1200 test rows, 8 of them outside their client's most frequent class, of "
        f"2 of 4 clients; left out {EXCLUSION}: "
        f"{run.client(1)} (2 rows, 1 of them outside their client's most frequent class), "
        f"{run.client(3)} (0 rows)."
    )
    assert "1200 test rows, 8 of them events, of" in evidence(times, mean)
    assert verdicts(compared["last"])[1].startswith("This rests on")


def test_a_page_says_where_its_means_are_over_more_clients_than_its_verdict(compared):
    run, base = compared["last"]
    mean = Gain(0.1, 0.0, 0.2, 1200, 1200, 8, 0.05, clients=3, excluded=(ExcludedClient(1, 2, 1),))
    assert fewer_clients(Gains(run, base, [], mean)) == (
        f"Means over clients cover all 4; statements on {run.label}'s gain leave out "
        f"{run.client(1)} {EXCLUSION}."
    )
    assert (
        fewer_clients(Gains(run, base, [], replace(mean, excluded=())))
        == fewer_clients(Gains(run, base, [], None))
        == ""
    )


def test_client_by_client_opens_with_the_run_of_the_verdict_also_where_training_alone_has_the_best_mean():
    apple, separate = runs(
        [regression("apple", (0.6, 0.9, 0.3)), regression("separate", (0.1, 0.1, 0.1))]
    )
    assert separate.mean < apple.mean  # of an error, less is better
    assert [(table.run.label, table.open) for table in client_tables([apple, separate])] == [
        ("APPLE", True),
        ("Separate", False),
    ]
    assert "APPLE is behind Separate" in verdicts([apple, separate])[0]
