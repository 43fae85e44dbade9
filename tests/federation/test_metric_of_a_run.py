"""The metric of a run from end to end: selection, record, evaluation; saved predictions, gains over
local training.
"""

import numpy as np
import pytest

import pomona
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.data.dataset import Dataset, Owners
from pomona.record.paired_gain import gains
from pomona.record.rows import Evaluation
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.tasks import TASKS
from pomona.tasks.scores import compute
from problems import Notes

HOSPITALS = ("Nord", "Rural", "Kids", "Urban", "West")


def hospitals(events=0.05, n=1500):
    """Five hospitals, few events, weakly informative features; Kids has no event at all."""
    draw = stream(0, "hospitals")
    x = draw.normal(size=(n, 6)).astype(np.float32)
    client = np.arange(n) % 5
    risk = x @ np.array([1.0, 0.8, -0.7, 0.5, 0.0, 0.0]) + 0.4 * draw.normal(size=n)
    y = (risk > np.quantile(risk, 1 - events)) & (client != 2)
    role = np.where(np.arange(n) % 10 < 6, 0, np.where(np.arange(n) % 10 < 8, 1, 2)).astype(np.int8)
    draw.shuffle(role)
    return Dataset(
        "hospitals",
        "table",
        x,
        y.astype(np.int64),
        ("no", "yes"),
        n,
        owners=Owners(HOSPITALS, client, role),
    )


def run(method, folder=None, data=None, **settings):
    config = resolve(
        {
            "method": method,
            "partition": "natural",
            "rounds": 4,
            "lr": 0.3,
            "workers": 1,
            "model": "logistic",
        },
        settings,
    )
    notes = Notes()
    return simulate(
        Scenario.prepare(config, lambda _: data or hospitals()), folder, notes
    ), notes.said


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [run(method, folder / method)[0] for method in ("separate", "fedavg")]


def test_few_events_are_judged_by_ranking_them(pair):
    for result in pair:
        assert result.about["metric"] == "auroc" == result.metric.name
        last = [e for e in result.evaluations if e.split == "test"][-1]
        assert last.metric == "auroc"
        assert last.value != last.accuracy
        assert last.value[2] is None
        assert last.accuracy[2] is not None
        assert last.mean == pytest.approx(np.mean([v for v in last.value if v is not None]))
        assert last.pooled is None  # the area of all samples is no mean of the clients' areas
        assert last.worst == min(v for v in last.value if v is not None)


def test_one_line_says_which_metric_and_why():
    _, notes = run("separate", rounds=1)
    (line,) = [text for text in notes if "metric" in text]
    assert "AUROC" in line
    assert "'no'" in line
    assert "%" in line
    result, notes = run("separate", rounds=1, metric="accuracy")
    assert result.about["metric"] == "accuracy"
    assert not [text for text in notes if "metric" in text]


def test_predictions_are_kept_and_read_back(pair):
    for result in pair:
        loaded = pomona.load(result.folder)
        key = tuple(result.about["headline"])
        last = result.curve(*key, "test")[-1]
        for client in range(5):
            outputs, targets = loaded.predictions(client)
            assert outputs.dtype == np.float32
            assert len(outputs) == result.about["sizes"]["test"][client]
            assert np.array_equal(outputs, result.predictions(client)[0])
            assert compute("auroc", outputs, targets, TASKS["classes"]) == pytest.approx(
                last.value[client]
            )
        assert loaded.predictions(5) is None


def test_a_damaged_file_of_predictions_is_named(pair, tmp_path):
    from shutil import copytree

    from pomona.core.errors import DataError

    folder = copytree(pair[0].folder, tmp_path / "run")
    (folder / "predictions.npz").write_bytes((folder / "predictions.npz").read_bytes()[:300])
    with pytest.raises(DataError, match=r"predictions\.npz"):
        pomona.load(folder).predictions(0)


def test_gains_over_training_alone_are_those_of_the_areas(pair):
    separate, fedavg = pair
    clients, mean = gains(fedavg, separate)
    assert clients[2] is None
    assert all(clients[i] for i in (0, 1, 3, 4))
    scores = [r.curve(*r.about["headline"], "test")[-1].value for r in (fedavg, separate)]
    for i in (0, 1, 3, 4):
        assert clients[i].value == pytest.approx(scores[0][i] - scores[1][i])
        assert clients[i].events < 6
        assert clients[i].interval is None
    assert mean.value == pytest.approx(np.mean([g.value for g in clients if g]))
    assert (mean.clients, [e.client for e in mean.excluded], mean.interval) == (4, [2], None)
    assert gains(fedavg, separate) == (clients, mean)


def test_what_a_constant_answer_reaches_is_on_record(pair):
    """Nobody has an event: right in all cases but the events, and no better than a coin at ranking
    them.
    """
    data = hospitals()
    scenario = Scenario.prepare(
        resolve({"method": "fedavg", "partition": "natural"}), lambda _: data
    )
    ys = [data.y[c.test] for c in scenario.partition.clients]
    for result in pair:
        for scope in ("own", "all"):
            constant = result.about["constant"][scope]
            assert constant["accuracy"]["clients"] == pytest.approx([(y == 0).mean() for y in ys])
            assert constant["accuracy"]["pooled"] == pytest.approx((np.concatenate(ys) == 0).mean())
            assert constant["auroc"]["clients"] == [0.5, 0.5, None, 0.5, 0.5]
            assert constant["auroc"]["pooled"] is None
    shares = [(data.y[c.train].sum() + 1) / (len(c.train) + 2) for c in scenario.partition.clients]
    losses = [
        -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean() for y, p in zip(ys, shares, strict=True)
    ]
    assert pair[0].about["constant"]["own"]["loss"]["clients"] == pytest.approx(losses, rel=1e-5)


def test_the_summary_of_few_events_is_about_ranking_them(pair):
    for result in pair:
        summary = pomona.load(result.folder).summary
        outcome = summary["models"][summary["headline"]]
        assert (summary["metric"], summary["minimised"], summary["diverging"]) == (
            "auroc",
            "auto",
            "",
        )
        assert outcome["chosen_by"] == "auroc"
        assert outcome["clients"]["clients"] == 4
        assert outcome["clients"]["pooled"] is None
        assert outcome["clients"]["interval"] is None  # of fewer than five clients
        assert outcome["best_test"]["test"] >= outcome["last"]["test"]
        assert outcome["accuracy"] > 0.9


def test_a_metric_that_does_not_fit_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="metric = 'mae', but the targets are classes"):
        run("fedavg", metric="mae")
    with pytest.raises(ConfigError, match="did you mean auroc"):
        resolve({"metric": "auroq"})


def test_records_of_before_are_judged_by_accuracy_or_loss():
    shared = (3, "personal", "trained", "test", (0, 1), (10, 30), (0.5, 0.7))
    old = Evaluation(*shared, (0.5, 1.0))
    assert (old.metric, old.value, old.mean, old.pooled) == ("accuracy", (0.5, 1.0), 0.75, 0.875)
    numbers = Evaluation(*shared, (None, None))
    assert (numbers.metric, numbers.mean, numbers.worst) == ("loss", pytest.approx(0.6), 0.7)
