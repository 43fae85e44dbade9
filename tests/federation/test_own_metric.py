"""A custom metric: a function by name, in evaluations, headline, report and agreement."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

import pomona
from pomona import Config
from pomona.core.errors import ConfigError
from pomona.metrics.metric import is_own, metric_named
from pomona.results.run_numbers import runs
from pomona.results.web.report_page import page

MODULE = __name__


def quadratic_kappa(predictions, targets):
    """Agreement beyond chance."""
    return cohen_kappa_score(targets, predictions.argmax(1), labels=range(10))


def surprise(predictions, targets):
    """Mean of -log p: less is better; undefined for fewer than two samples."""
    if len(targets) < 2:
        return np.nan
    return -np.log(predictions[np.arange(len(targets)), targets]).mean()


def text_metric(predictions, targets):
    return "good"


def endless(predictions, targets):
    return float("inf")


def run(metric, folder=None):
    config = Config(
        method="fedavg", clients=3, rounds=2, lr=0.1, data={"train_limit": 300}, metric=metric
    )
    return pomona.run(config, folder)


def test_it_judges_the_run():
    result = run(f"{MODULE}:quadratic_kappa")
    last = result.curve("global", "received")[-1]
    for client in range(3):
        outputs, targets = result.predictions(client)
        assert last.value[client] == pytest.approx(cohen_kappa_score(targets, outputs.argmax(1)))
    (final,) = [
        r for r in result.final if (r["model"], r["split"], r["client"]) == ("global", "test", 0)
    ]
    assert final[f"{MODULE}:quadratic_kappa"] == pytest.approx(last.value[0])
    assert (result.metric.title, result.metric.higher, result.metric.pools) == (
        "quadratic kappa",
        True,
        False,
    )
    assert result.summary["metric"] == f"{MODULE}:quadratic_kappa"
    assert "quadratic kappa" in page(runs([result]))


def test_less_is_better_after_a_minus(tmp_path):
    result = run(f"-{MODULE}:surprise", tmp_path / "run")
    assert pomona.load(tmp_path / "run").final == result.final
    values = [e.mean for e in result.curve("global", "received")]
    best = result.summary["models"][result.summary["headline"]]["best_test"]
    assert best["test"] == min(values)
    for record in result.final:
        assert record[f"-{MODULE}:surprise"] == pytest.approx(record["loss"])


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (f"{MODULE}:nothing", "cannot load"),
        ("nowhere.at.all:f", "cannot load"),
        (f"{MODULE}:text_metric", "gave str; return a number, NaN where undefined"),
        (f"{MODULE}:endless", "gave inf; return NaN where it is undefined"),
        ("accurracy", "did you mean accuracy"),
        ("a:b:c", "known"),
    ],
)
def test_what_is_no_metric_is_one_line(metric, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run(metric)
    assert "\n" not in str(caught.value)


def test_its_name_says_all_that_a_reader_of_a_record_needs():
    assert not is_own("accuracy")
    assert not is_own("os:system;rm")
    assert not is_own("--a:b")
    assert metric_named("-not_there:my_score").better(0.1, 0.2)
    assert metric_named("not_there:my_score").better(0.2, 0.1)
    with pytest.raises(KeyError):
        metric_named("no such")
