"""Early stopping: the best round by definition, and runs that end when patience is exhausted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.training_settings import Stop
from pomona.federation import early_stopping
from pomona.federation.callbacks import StopAfter
from pomona.federation.early_stopping import ValidationCurve
from pomona.metrics.best_round import Best, Point, best, reason
from pomona.metrics.client_statistics import best_rounds
from pomona.metrics.metric import ACCURACY, LOSS
from pomona.record.rows import Evaluation
from problems import Notes, tiny

# no accuracy is better by more than 1: the first evaluation stays the best
NEVER = {"patience": 2, "min_gain": 1.0}
RUN = {"rounds": 6, "model": {"name": "mlp", "hidden": [8]}, "metric": "accuracy"}
means = st.lists(st.one_of(st.none(), st.sampled_from([0.1, 0.2, 0.3, 0.4])), max_size=8)


def curve(values, losses=None):
    return [Point(k, v, w) for k, (v, w) in enumerate(zip(values, losses or values, strict=True))]


@pytest.mark.long
@given(means, st.sampled_from([ACCURACY, LOSS]))
def test_the_best_round_is_that_of_the_summary(values, metric):
    point = best(curve(values), metric)
    trained = [v for v in values[1:] if v is not None]
    if not trained:
        assert point is None
        return
    expected = best_rounds(
        range(len(values)), [[0.5]] * len(values), [1], [[v] for v in values], metric
    )
    assert point.round == expected.best_validation.round
    assert point.value == (max if metric.higher else min)(trained)
    assert point.since == len(values) - 1 - point.round


def test_a_gain_that_is_too_small_is_none():
    values = [None, 0.5, 0.55, 0.61, 0.62, 0.72]
    assert [best(curve(values[: k + 1]), ACCURACY, 0.1).round for k in range(1, 6)] == [
        1,
        1,
        3,
        3,
        5,
    ]
    assert best(curve([9.0, 2.0, 1.95, 1.0]), LOSS, 0.1)[:2] == (3, 1.0)


def test_without_early_stopping_no_curve_is_read(monkeypatch):
    monkeypatch.setattr(early_stopping, "best", None)  # a call would fail
    assert not early_stopping.ValidationCurve(("personal", "trained"), ACCURACY, None).should_stop


def test_the_loss_decides_where_the_metric_is_undefined_throughout():
    assert best(curve([None] * 4, [9.0, 2.0, 1.0, 3.0]), ACCURACY)[:4] == (2, 1.0, LOSS, 1)
    assert best(curve([None, None, 0.3, None], [9.0, 2.0, 1.0, 3.0]), ACCURACY)[:4] == (
        2,
        0.3,
        ACCURACY,
        1,
    )


OWN_BEST = [
    # a client's own values and losses; round, value, metric and later evaluations of its best
    ([None, 0.9, 0.8], [9.0, 0.3, 0.1], (1, 0.9, ACCURACY, 1)),
    ([None, 0.9, None, None, 0.2], [9.0, 0.1, 0.5, 0.4, 0.3], (3, 0.4, LOSS, 1)),
    ([None, None, None], [9.0, 0.5, None], (1, 0.5, LOSS, 1)),
]


def test_of_one_clients_rounds_those_without_the_metric_are_better_and_the_loss_orders_them():
    for values, losses, expected in OWN_BEST:
        assert best(curve(values, losses), ACCURACY, single_client=True) == expected
    values, losses, _ = OWN_BEST[1]
    assert best(curve(values, losses), ACCURACY) == (1, 0.9, ACCURACY, 3)
    assert best(curve(values, losses), ACCURACY, first_round=4) == (4, 0.2, ACCURACY, 0)
    assert best(curve([None] * 2), ACCURACY, single_client=True) is None


def test_the_reason_names_both_rounds_and_the_score():
    text = reason(Best(3, 0.25, ACCURACY, 2), 5)
    assert all(word in text for word in ("after round 5", "after round 3", "25"))


def evaluation(number, *scores, split="validation"):
    """Clients' accuracies, whose losses are the same numbers."""
    clients = tuple(range(len(scores)))
    fields = {"loss": scores, "accuracy": scores, "value": scores, "metric": "accuracy"}
    return Evaluation(number, "personal", "trained", split, clients, (9,) * len(scores), **fields)


def validation(*rounds, **stop):
    curve = ValidationCurve(("personal", "trained"), ACCURACY, Stop(**stop) if stop else None)
    curve.restore([("round", None), *(("evaluation", r) for r in rounds)])
    return curve


def test_a_curve_has_the_evaluations_of_the_headline_model_on_validation():
    empty = validation(evaluation(1, 0.5, split="test"), patience=1)
    assert (empty.best, empty.best_round, empty.overruled, empty.should_stop) == (
        None,
        -1,
        {},
        False,
    )
    assert empty.note(evaluation(1, None, None))
    assert not empty.note(evaluation(1, 0.5, split="test"))
    assert (empty.best, empty.best_round, empty.should_stop) == (None, -1, False)
    assert validation(evaluation(1, 0.5)).best == (1, 0.5, ACCURACY, 0)


def test_a_run_is_spent_once_patience_and_its_least_number_of_rounds_are_over():
    rounds = [evaluation(k, score) for k, score in enumerate((0.5, 0.55, 0.58), start=1)]
    for stop, stops in (
        ({"patience": 2, "min_gain": 0.1}, True),
        ({"patience": 2, "min_gain": 0.1, "after": 3}, True),
        ({"patience": 2, "min_gain": 0.1, "after": 4}, False),
        ({"patience": 3, "min_gain": 0.1}, False),
        ({"patience": 1}, False),
        ({}, False),
    ):
        curve = validation(*rounds, **stop)
        assert curve.should_stop == stops, stop
        assert curve.best.round == (1 if "min_gain" in stop else 3)
        assert curve.best_round == 3  # however small its gain


def test_a_client_that_would_decide_alone_is_named_with_what_counts_instead():
    earlier = evaluation(1, 0.25, 1.0, 0.25)
    false, missing = evaluation(2, 0.5, 0.0, 0.5), evaluation(2, 0.5, None, 0.5)
    for last, phrases in (
        (false, ("-1", "+0.25 to +0.25")),
        (missing, ("missing", "+0.25 to +0.25")),
    ):
        curve = validation(earlier, last)
        ((client, phrase),) = curve.overruled.items()
        assert client == 1
        assert all(word in phrase for word in phrases)
        curve.chooses = False
        assert curve.overruled == {}
    assert validation(earlier, false, evaluation(3, 0.5, 0.0, 0.75)).overruled == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "overrides", "rounds"),
    [
        # evaluated as trained: best in round 1, two evaluations later patience ends
        ("apfl", {}, 3),
        ("fedavg", {}, 4),  # evaluated as received, one round later
        ("fedavg", {"eval_every": 2, "rounds": 12}, 7),  # rounds 2, 4, 6, the last seen in round 7
        ("apfl", {"eval_every": 2, "rounds": 12}, 6),
        ("fedavg", {"participation": 0.5, "checkpoint_every": 5}, 4),
        ("fedavg", {"stop": {"patience": 6}}, 6),
        ("apfl", {"stop": {**NEVER, "after": 5}}, 5),
        ("fedavg", {"stop": {**NEVER, "after": 4}}, 5),
        ("apfl", {"eval_every": 2, "rounds": 12, "stop": {**NEVER, "after": 7}}, 8),
    ],
)
def test_a_run_ends_where_patience_does_and_is_the_beginning_of_the_whole(
    method, overrides, rounds
):
    callback = Notes()
    settings = {**RUN, **overrides}
    stopped, complete = (
        pomona.run(tiny(method, **{**settings, "stop": stop}), callback=callback)
        for stop in (overrides.get("stop", NEVER), None)
    )
    assert [r.round for r in stopped.rounds] == list(range(1, rounds + 1))
    assert [r.loss for r in stopped.rounds] == [r.loss for r in complete.rounds][:rounds]
    model, when = stopped.about["headline"]
    for split in ("validation", "test"):
        ours, theirs = (run.curve(model, when, split) for run in (stopped, complete))
        assert ours[-1].round == rounds
        expected = {e.round: e.value for e in theirs}
        assert all(e.value == expected.get(e.round, e.value) for e in ours)
    ends_early = rounds < settings["rounds"]
    assert bool(stopped.summary["stopped"]) == ends_early
    assert [stopped.summary["stopped"]] * ends_early == [
        note for note in callback.said if note.startswith("stopped")
    ]
    assert not complete.summary["stopped"]
    assert sorted(stopped.models) == sorted(complete.models)


@pytest.mark.long
@pytest.mark.parametrize("method", ["apfl", "fedavg"])
def test_a_stopped_run_is_finished_and_one_that_was_cut_short_stops_where_it_would_have(
    tmp_path, method
):
    config = tiny(method, **RUN, stop=NEVER)
    expected = pomona.run(config, tmp_path / "whole")
    callback = Notes()
    reopened = pomona.run(config, tmp_path / "whole", callback, resume=True)
    assert [r.loss for r in reopened.rounds] == [r.loss for r in expected.rounds]
    assert any("is finished; nothing to do" in note for note in callback.said)
    extended = pomona.run(
        tiny(method, **{**RUN, "rounds": 9}, stop=NEVER), tmp_path / "whole", resume=True
    )
    assert len(extended.rounds) == len(expected.rounds)
    assert extended.summary["stopped"] == expected.summary["stopped"]

    last = len(expected.rounds)
    # before patience ends, and between the last commit and the closing evaluation
    for last_round in (2, last):
        folder = tmp_path / f"cut-{last_round}"
        with pytest.raises(KeyboardInterrupt):
            pomona.run(config, folder, StopAfter(last_round))
        resumed = pomona.run(config, folder, resume=True)
        assert resumed.evaluations == expected.evaluations
        assert resumed.summary["stopped"] == expected.summary["stopped"]


@pytest.mark.slow
def test_workers_stop_alike():
    single, parallel = (pomona.run(tiny("fedavg", **RUN, stop=NEVER, workers=w)) for w in (1, 2))
    assert single.evaluations == parallel.evaluations
