"""The named numbers against explicit arithmetic."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_results import comparison, degenerate, halved, presented, regression, result

from pomona.core.rng import stream
from pomona.metrics.best_round import FEWEST
from pomona.record.headline import views
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results import headline, table
from pomona.results.figures import clients
from pomona.results.figures.series import blocks, order, recorded
from pomona.results.run_numbers import comparable, leader, runs
from pomona.results.summary_table import distinct


def test_a_mean_over_no_samples_is_undefined() -> None:
    evaluation = Evaluation(1, "personal", "trained", "test", (0,), (0,), (0.5,), (1.0,))
    assert (evaluation.mean, evaluation.pooled) == (1.0, None)


def tiny(
    name: str,
    curves: dict[tuple[str, str, str], list[list[float | None]]],
    samples: tuple[int, ...],
) -> Result:
    """A run from accuracies by (model, when, split), round (from 1) and client."""
    n = len(samples)
    evaluations = [
        Evaluation(r, *key, tuple(range(n)), samples, (0.5,) * n, tuple(row))
        for key, rows in curves.items()
        for r, row in enumerate(rows, 1)
    ]
    return Result(
        {"method": {"name": name}},
        {**presented(name), "clients": [f"c{i}" for i in range(n)]},
        [],
        evaluations,
        [],
        {},
    )


TEST = ("personal", "trained", "test")
VALIDATION = ("personal", "trained", "validation")


def test_named_numbers_of_a_small_run() -> None:
    test, validation = [[0.2, 0.4], [0.9, 0.7], [0.5, 1.0]], [[0.9, 0.9], [0.1, 0.1], [0.8, 0.8]]
    row = table([tiny("apple", {TEST: test, VALIDATION: validation}, (30, 10))])[0]
    assert row["last"] == pytest.approx((0.5 + 1.0) / 2)
    assert row["best_on_test"] == pytest.approx((0.9 + 0.7) / 2)
    assert row["test_round"] == 2
    assert row["test_at_best_validation"] == pytest.approx((0.2 + 0.4) / 2)
    assert row["validation_round"] == 1
    assert row["pooled"] == pytest.approx((30 * 0.5 + 10 * 1.0) / 40)
    assert (row["worst"], row["worst_client"]) == (0.5, "c0")
    assert row["percentile_10"] == pytest.approx(0.5 + 0.1 * (1.0 - 0.5))
    assert row["finished"] is False


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_summary_agrees_with_numpy(n: int, rounds: int, seed: int) -> None:
    test, validation = stream(seed, "accuracies").random((2, rounds, n))
    sizes = stream(seed, "sizes").integers(1, 50, n)
    row = table(
        [
            tiny(
                "apple",
                {TEST: test.tolist(), VALIDATION: validation.tolist()},
                tuple(sizes.tolist()),
            )
        ]
    )[0]
    assert row["last"] == pytest.approx(test[-1].mean())
    assert row["best_on_test"] == pytest.approx(test.mean(axis=1).max())
    if n < FEWEST:  # with more clients one of them may be outvoted, which has tests of its own
        best = validation.mean(axis=1).argmax()
        assert row["test_at_best_validation"] == pytest.approx(test[best].mean())
    assert row["pooled"] == pytest.approx((test[-1] * sizes).sum() / sizes.sum())
    assert row["worst"] == test[-1].min()
    assert row["percentile_10"] == pytest.approx(np.quantile(test[-1], 0.1))


def test_the_loss_chooses_the_round_in_the_table_too_where_validation_defines_no_metric() -> None:
    shape = {"clients": (0, 1), "samples": (9, 9)}
    evaluations = [
        Evaluation(r, "personal", "trained", split, loss=(loss, loss), accuracy=(None, None), value=v, metric="auroc", **shape)
        for r, loss, tested in ((1, 0.5, 0.6), (2, 0.2, 0.7), (3, 0.4, 0.8))
        for split, v in (("test", (tested, tested)), ("validation", (None, None)))
    ]  # fmt: skip
    metadata = {**presented("apple"), "clients": ["a", "b"]}
    row = table([Result({"method": {"name": "apple"}}, metadata, [], evaluations, [], {})])[0]
    assert (row["test_at_best_validation"], row["validation_round"]) == (pytest.approx(0.7), 2)


def test_summary_holds_where_clients_come_late_and_a_validation_round_is_missing() -> None:
    views = [
        (1, "test", (0, 1), (0.5, 0.7)), (2, "test", (0, 1, 2), (0.9, 0.2, None)), (3, "test", (0, 1, 2), (0.6, 0.4, 0.8)),
        (1, "validation", (0, 1), (0.1, 0.2)), (3, "validation", (0, 1, 2), (0.2, 0.3, 0.1)),
    ]  # fmt: skip
    sizes = (10, 30, 20)
    evaluations = [
        Evaluation(r, "personal", "trained", split, ids, sizes[: len(ids)], (0.5,) * len(ids), a)
        for r, split, ids, a in views
    ]
    metadata = {"clients": ["a", "b", "c"]}
    row = table([Result({"method": {"name": "apple"}}, metadata, [], evaluations, [], {})])[0]
    assert row["last"] == pytest.approx((0.6 + 0.4 + 0.8) / 3)
    assert (row["best_on_test"], row["test_round"]) == (pytest.approx((0.5 + 0.7) / 2), 1)
    assert (row["test_at_best_validation"], row["validation_round"]) == (
        pytest.approx((0.6 + 0.4 + 0.8) / 3),
        3,
    )
    assert row["pooled"] == pytest.approx((10 * 0.6 + 30 * 0.4 + 20 * 0.8) / 60)
    assert (row["worst"], row["worst_client"]) == (0.4, "b")


def test_traffic_and_time_are_totals() -> None:
    run = result("apple", n=3, rounds=4)
    row = table([run])[0]
    # APPLE: each of 3 clients takes the 2 other core models down and sends its own up, in 4 rounds
    # of 1.5 s.
    assert (row["bytes_down"], row["bytes_up"]) == (4 * 3 * 2 * 431_080 * 4, 4 * 3 * 431_080 * 4)
    assert row["seconds"] == pytest.approx(4 * 1.5)


def test_headline_prefers_the_personal_model() -> None:
    chosen = {run.name: headline(run) for run in comparison(n=2, rounds=1)}
    assert chosen == {
        "separate": ("personal", "trained"),
        "fedavg": ("global", "received"),
        "fedavg-ft": ("personal", "received"),
        "apple": ("personal", "trained"),
    }
    assert headline(replace(result("apple", n=2, rounds=1), evaluations=[])) is None


def test_headline_is_what_the_method_names() -> None:
    run = result("fedavg-ft", n=2, rounds=1)
    assert headline(replace(run, about={**run.about, "headline": ["global", "received"]})) == (
        "global",
        "received",
    )
    # A name that was never evaluated cannot be judged by.
    assert headline(replace(run, about={**run.about, "headline": ["local", "trained"]})) == (
        "personal",
        "received",
    )


def test_every_named_model_has_a_row_and_the_headline_is_first() -> None:
    results = comparison(n=2, rounds=1)
    rows = table(results)
    assert [(r["model"], r["when"]) for r in rows] == [key for run in results for key in views(run)]
    assert sum(r["headline"] for r in rows) == len(results)


def test_labels_are_unique_and_name_what_differs() -> None:
    several = [
        result("apple", n=2, rounds=1, seed=s, mu=mu) for s, mu in ((1, 0.0), (1, 0.1), (2, 0.1))
    ]
    labels = [run.label for run in runs(several)]
    assert labels == ["APPLE, mu 0.0, seed 1", "APPLE, mu 0.1, seed 1", "APPLE, mu 0.1, seed 2"]
    copies = [replace(several[0], folder=Path(path)) for path in ("runs/cut", "runs/whole")]
    assert [run.label for run in runs(copies)] == ["APPLE, cut", "APPLE, whole"]
    for folder in (None, Path("runs/cut"), Path()):
        twice = [replace(several[0], folder=folder)] * 2
        assert [run.label for run in runs(twice)] == ["APPLE, run 1", "APPLE, run 2"]


def test_lower_is_better_where_the_metric_says_so() -> None:
    """Three clients' mean absolute errors: the worst is the largest, and the best round the
    smallest mean.
    """
    run = regression(errors=(0.6, 0.9, 0.3))
    falling = [
        replace(e, value=tuple(v + 0.1 * (e.round == 4) for v in e.value))
        for e in run.evaluations  # worse at the end
    ]
    row = table([replace(run, evaluations=falling)])[0]
    assert row["metric"] == "mae"
    assert row["last"] == pytest.approx(0.7)
    assert (row["worst"], row["worst_client"]) == (pytest.approx(1.0), "clinic 2")
    assert (row["best_on_test"], row["test_round"]) == (pytest.approx(0.6), 1)
    # A tenth of the clients fare no better: the 90th percentile of 0.4, 0.7 and 1.0.
    assert row["percentile_10"] == pytest.approx(0.7 + 0.8 * 0.3)
    assert row["pooled"] == pytest.approx(falling[-1].pooled)
    assert (
        leader(runs([regression("separate", (0.5, 0.5)), regression("apple", (0.9, 0.2))])).label
        == "Separate"
    )


def test_runs_that_differ_in_their_loss_say_so_first() -> None:
    """Two FedAvg runs that differ in rounds, rate and loss: the loss is in the name, and stands
    beside the number.
    """
    plain, base = result("fedavg", n=2, rounds=1), result("fedavg", n=2, rounds=1)
    weighted = replace(
        base, config={**base.config, "lr": 0.1, "model": {"name": "lenet", "loss": "mine:weighted"}}
    )
    plain = replace(plain, config={**plain.config, "model": {"name": "lenet", "loss": "auto"}})
    labels = [run.label for run in runs([plain, weighted])]
    assert labels == ["FedAvg, loss auto, lr 0.01", "FedAvg, loss mine:weighted, lr 0.1"]
    rows = distinct(table([plain, weighted]))
    assert [row["loss_name"] for row in rows if row["headline"]] == ["auto", "mine:weighted"]


def test_a_model_that_stands_there_already_is_not_listed_again() -> None:
    """FedAvg-FT trains FedAvg's global model: one row for it, wherever FedAvg stands; nothing else
    is lost.
    """
    fedavg, tuned = result("fedavg", n=2, rounds=2), result("fedavg-ft", n=2, rounds=2)
    shared = {(e.round, e.split): e for e in fedavg.evaluations if e.model == "global"}
    copies = [shared[e.round, e.split] if e.model == "global" else e for e in tuned.evaluations]
    for results in (
        [fedavg, replace(tuned, evaluations=copies)],
        [replace(tuned, evaluations=copies), fedavg],
    ):
        listed = [(row["run"], row["model"]) for row in distinct(table(results))]
        assert sorted(listed) == [
            ("FedAvg", "global"),
            ("FedAvg", "local"),
            ("FedAvg-FT", "personal"),
        ]
    assert len(distinct(table([fedavg, tuned]))) == 4  # another global model is another row


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_order_is_a_permutation(n: int, seed: int) -> None:
    assert sorted(order(stream(seed, "matrix").normal(size=(n, n)))) == list(range(n))


def test_order_puts_groups_together() -> None:
    groups = [0, 1, 2] * 3
    similarity = np.equal.outer(groups, groups).astype(float)
    assert sorted(blocks(order(similarity), groups)) == [(0, 3), (3, 3), (6, 3)]


def test_a_client_that_sits_out_keeps_its_row() -> None:
    run = result("apple", n=3, rounds=2)
    first, second = run.rounds
    dr = recorded(runs([replace(run, rounds=[first, halved(second)])])[0])["dr"]
    np.testing.assert_array_equal(dr.values[0], first.info["dr"])
    np.testing.assert_array_equal(dr.values[1, [0, 2]], second.info["dr"][[0, 2]])
    np.testing.assert_array_equal(dr.values[1, 1], first.info["dr"][1])
    late = recorded(runs([replace(run, rounds=[halved(first)])])[0])["dr"]
    assert np.isnan(late.values[0, 1]).all()


def test_methods_are_written_as_their_papers_write_them() -> None:
    results = [tiny(name, {}, (1,)) for name in ("fedphp+ala", "per-fedavg", "mine", "mine+ala")]
    assert [run.label for run in runs(results)] == ["FedPHP+ALA", "Per-FedAvg", "mine", "mine+ala"]


def test_unequal_scenarios_are_not_comparable() -> None:
    assert not comparable(runs(degenerate()["unequal scenarios"]()))
    judged_by_loss = replace(regression(), about={**regression().about, "metric": "loss"})
    assert not comparable(runs([regression(), judged_by_loss]))


def test_clients_stand_by_their_gain_where_separate_training_leads() -> None:
    """Errors are better when smaller; the gains are -0.4, 0.3 and -0.2, and the largest is on
    top.
    """
    separate, apple = regression("separate", (0.5, 0.5, 0.3)), regression("apple", (0.9, 0.2, 0.5))
    picture = clients.values(runs([separate, apple]))
    assert leader(runs([separate, apple])).label == "Separate"
    assert "Sorted by gain with APPLE" in picture.caption
    assert [tick.get_text() for tick in picture.figure.axes[0].get_yticklabels()] == [
        "clinic 1",
        "clinic 3",
        "clinic 2",
    ]
