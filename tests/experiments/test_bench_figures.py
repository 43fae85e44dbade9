"""A cell's figures: the best validation round, its test values, and losses where accuracy is
undefined.
"""

from dataclasses import replace

import pytest

from pomona.experiments.job import figures, seconds
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import load


def evaluation(round_, split, accuracy, loss=(1.0, 1.0)):
    return Evaluation(round_, "personal", "trained", split, (0, 1), (10, 30), loss, accuracy)


def result(evaluations):
    record = {
        "headline": ["personal", "trained"],
        "clients": ["a", "b"],
        "parameters": 5,
        "data": {"fingerprint": "f"},
        "partition_sha256": "p",
        "versions": {},
        "engine": "torch",
    }
    rounds = [RoundRow(r, 0.5 * r, (0, 1), (1.0, 1.0), (8, 8), (4, 2)) for r in (1, 2, 3)]
    return Result({}, record, rounds, evaluations, [], {"unseen": {}})


def test_the_round_is_chosen_on_validation_and_judged_on_test():
    # Validation means 0.4, 0.7, 0.7: the first best is round 2, whose test mean (0.2 + 0.6) / 2 is
    # not the best.
    validated = {1: (0.3, 0.5), 2: (0.6, 0.8), 3: (0.7, 0.7)}
    tested = {1: (0.9, 0.9), 2: (0.2, 0.6), 3: (0.5, 1.0)}
    evaluations = [evaluation(r, "validation", a) for r, a in validated.items()]
    numbers = figures(
        result([*evaluations, *(evaluation(r, "test", a) for r, a in tested.items())])
    )
    moments = numbers["models"]["personal, trained"]
    assert numbers["validation"] == {"value": pytest.approx(0.7), "round": 2}
    assert moments["best_validation"]["round"] == 2
    assert moments["best_validation"]["accuracy"] == [0.2, 0.6]
    assert moments["best_validation"]["summary"]["mean"] == pytest.approx(0.4)
    assert moments["last"]["summary"]["pooled"] == pytest.approx((10 * 0.5 + 30 * 1.0) / 40)
    assert moments["last"]["summary"]["worst"] == 0.5
    assert numbers["curve"]["round"] == [1, 2, 3]
    assert numbers["curve"]["test_accuracy"] == pytest.approx([0.9, 0.4, 0.75])
    assert (numbers["bytes_down"], numbers["bytes_up"], numbers["rounds"]) == (48, 18, 3)


def test_where_there_are_no_accuracies_the_loss_chooses():
    # Validation losses 3, 1, 2 in the mean: round 2.
    losses = {1: (3.0, 3.0), 2: (0.5, 1.5), 3: (2.0, 2.0)}
    no_accuracies = (None, None)
    numbers = figures(
        result(
            [
                evaluation(r, split, no_accuracies, loss)
                for r, loss in losses.items()
                for split in ("validation", "test")
            ]
        )
    )
    assert numbers["validation"] == {"value": -1.0, "round": 2}
    assert numbers["models"]["personal, trained"]["best_validation"]["summary"]["loss"] == 1.0
    assert numbers["metric"] == "loss"
    assert numbers["models"]["personal, trained"]["last"]["summary"]["mean"] == 2.0
    assert numbers["models"]["personal, trained"]["last"]["summary"]["accuracy"] is None


def ranked(round_, split, value, loss):
    return Evaluation(
        round_, "personal", "trained", split, (0, 1), (10, 30), loss, (0.9, 0.9), value, "auroc"
    )


def test_a_bench_chooses_by_the_metric_of_its_runs():
    """Accuracy is 0.9 throughout; the areas on validation, 0.55, 0.75 and 0.7 in the mean, choose
    round 2.
    """
    areas = {1: (0.5, 0.6), 2: (0.7, 0.8), 3: (0.9, 0.5)}
    runs = [
        ranked(r, split, v, (1.0, 1.0))
        for r, v in areas.items()
        for split in ("validation", "test")
    ]
    numbers = figures(result(runs))
    assert numbers["metric"] == "accuracy"  # as nothing on record says otherwise
    record = {**result([]).about, "metric": "auroc"}
    numbers = figures(replace(result(runs), about=record))
    assert (numbers["metric"], numbers["validation"]) == (
        "auroc",
        {"value": pytest.approx(0.75), "round": 2},
    )
    moment = numbers["models"]["personal, trained"]["best_validation"]
    assert (moment["value"], moment["accuracy"], moment["summary"]["pooled"]) == (
        [0.7, 0.8],
        [0.9, 0.9],
        None,
    )
    assert (moment["summary"]["mean"], moment["summary"]["accuracy"]) == pytest.approx((0.75, 0.9))
    # No validation samples of any client define the areas: the lowest loss chooses.
    blind = [
        ranked(r, "validation", (None, None), loss)
        for r, loss in {1: (0.3, 0.3), 2: (0.2, 0.6)}.items()
    ]
    tests = [ranked(r, "test", (0.5, 0.5), (1.0, 1.0)) for r in (1, 2)]
    numbers = figures(replace(result([*blind, *tests]), about=record))
    assert numbers["validation"] == {"value": pytest.approx(-0.3), "round": 1}


def test_without_validation_samples_there_is_a_last_round_only():
    numbers = figures(result([evaluation(1, "test", (0.5, None))]))
    assert numbers["validation"] is None
    assert numbers["models"]["personal, trained"]["best_validation"] is None
    assert numbers["models"]["personal, trained"]["last"]["accuracy"] == [0.5, None]
    assert figures(result([]))["models"] == {}


def test_seconds_add_up():
    assert seconds(result([])) == [0.5, 1.5, 3.0]


def test_the_figures_of_a_run_are_those_of_its_own_summary(full_bench):
    cells = [cell for r in full_bench.results["results"] for cell in r["cells"]]
    assert len(cells) == 4
    for cell in cells:
        run, figures = load(full_bench.folder / cell["folder"]), cell["figures"]
        assert figures["headline"] == run.summary["headline"]
        assert set(figures["models"]) == set(run.summary["models"])
        for name, outcome in run.summary["models"].items():
            for moment in ("last", "best_validation"):
                mine = figures["models"][name][moment]
                assert (mine["summary"]["mean"], mine["round"]) == (
                    outcome[moment]["test"],
                    outcome[moment]["round"],
                )
            loss = figures["models"][name]["last"]["summary"]["loss"]
            assert loss == pytest.approx(outcome["loss"])
