"""The model in a client's file: each selected model equals that of a run that ended in its
round.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.errors import CheckpointError, ConfigError
from pomona.federation.callbacks import StopAfter
from pomona.federation.recorded_models import ModelChoice
from pomona.metrics.best_round import Point, best
from pomona.metrics.metric import LOSS, METRICS, Score
from pomona.personal.collect import _best_round_note
from pomona.record.rows import Evaluation
from pomona.scenario.checks import require_task
from problems import equal, tiny

TRAINING = {"lr": 2.0, "local_epochs": 2, "metric": "accuracy"}
RUN = {"rounds": 6, "model": {"name": "mlp", "hidden": [8]}, **TRAINING}


def rounds_chosen(result, choice):
    """The round of the model in each client's file, from the record's evaluations; the first of
    equal ones.
    """
    model, when = result.about["headline"]
    curve = [e for e in result.curve(model, when, "validation") if e.round > 0]
    if choice == "own_best":
        scores = {
            i: [(e.by_client(e.value, [i])[0], e.round) for e in curve]
            for i in range(len(result.about["clients"]))
        }
        return {i: max(points, key=lambda p: (p[0], -p[1]))[1] for i, points in scores.items()}
    best = (
        max(curve, key=lambda e: (e.mean, -e.round)).round
        if choice == "best"
        else result.rounds[-1].round
    )
    return dict.fromkeys(range(len(result.about["clients"])), best)


@pytest.mark.long
@pytest.mark.parametrize("choice", ["last", "best", "own_best"])
@pytest.mark.parametrize("method", ["apfl", "fedavg"])
def test_files_hold_the_model_of_the_round_that_is_asked_for(tmp_path, choice, method):
    folder = tmp_path / "run"
    result = pomona.run(tiny(method, **RUN, keep=choice), folder)
    chosen = rounds_chosen(result, choice)
    assert choice == "last" or min(chosen.values()) < RUN["rounds"]
    in_memory = pomona.run(tiny(method, **RUN, keep=choice, workers=2))
    shorter = {
        number: pomona.run(tiny(method, **{**RUN, "rounds": number}))
        for number in set(chosen.values())
    }
    for client, number in chosen.items():
        assert equal(result.models[client], shorter[number].models[client])
        assert equal(in_memory.models[client], result.models[client])


@pytest.mark.long
@pytest.mark.parametrize("choice", ["best", "own_best"])
def test_a_run_that_goes_on_chooses_as_if_it_had_never_ended(tmp_path, choice):
    config = tiny("apfl", **RUN, keep=choice)
    uninterrupted = pomona.run(config)
    for last_round in (2, 4, 6):
        with pytest.raises(KeyboardInterrupt):
            pomona.run(config, tmp_path / str(last_round), StopAfter(last_round))
        resumed = pomona.run(config, tmp_path / str(last_round), resume=True)
        assert all(equal(resumed.models[i], uninterrupted.models[i]) for i in uninterrupted.models)


def test_with_an_early_stop_and_few_clients_a_round_the_best_is_kept_too():
    settings = {**RUN, "participation": 0.5, "stop": {"patience": 2}, "keep": "best"}
    result = pomona.run(tiny("fedavg", **settings))
    (number,) = set(rounds_chosen(result, "best").values())
    shorter = pomona.run(tiny("fedavg", **{**RUN, "participation": 0.5, "rounds": number}))
    assert all(equal(result.models[i], shorter.models[i]) for i in result.models)


@pytest.mark.parametrize("key", ["keep", "specificity", "stop"])
def test_without_validation_samples_nothing_can_be_chosen(key):
    choice = {"keep": "own_best", "specificity": 0.9, "stop": {"patience": 1}}[key]
    data = {"name": "digits", "train_limit": 240, "validation_share": 0.0}
    with pytest.raises(ConfigError, match=rf"{key}(\.patience)? needs validation samples"):
        pomona.run(tiny("fedavg", **RUN, data=data, **{key: choice}))


@pytest.mark.parametrize(
    ("method", "last", "settings"),
    [
        ("fedavg", {2: 6, 1: 6}, {"membership": {"joins": {2: 6}, "unseen": [1]}, "seed": 2}),
        ("apfl", {2: 5}, {"membership": {"joins": {2: 5}, "leaves": {2: 5}}, "seed": 1}),
        ("apfl", {3: 6}, {"participation": 0.4, "clients": 5, "seed": 3}),  # drawn in round 5
    ],
)
def test_who_comes_after_the_best_round_has_the_last_ones_model(tmp_path, method, last, settings):
    """The best on validation is an earlier round than that of the clients' first model."""
    result = pomona.run(tiny(method, **RUN, keep="best", **settings), tmp_path / "run")
    best_round = result.score.round
    assert 0 < best_round < 5
    for client in result.models:
        card = (tmp_path / "run/models" / f"client-{client:02d}.card.md").read_text()
        assert f"after round {last.get(client, best_round)}." in card
    (note,) = [n.text for n in result.notes if f"by round {best_round}, the best" in n.text]
    assert note.startswith(", ".join(f"client {client}" for client in sorted(last)) + ":")
    assert "of their last round" in note


@pytest.mark.parametrize("targets", ["regression", "survival", "segmentation"])
def test_thresholds_are_those_of_classes_and_labels(targets):
    for key in ("specificity", "sensitivity"):
        config = tiny("fedavg", **{key: 0.9})
        require_task(config, "multilabel")
        with pytest.raises(ConfigError, match=f"{key} is for .* the data have {targets}"):
            require_task(config, targets)


def test_the_card_names_the_round_of_the_file_and_its_figures(tmp_path):
    result = pomona.run(tiny("fedavg", **RUN, keep="own_best"), tmp_path / "run")
    model, when = result.about["headline"]
    for client, number in rounds_chosen(result, "own_best").items():
        values = [
            f"{split} {result.metric.number(e.by_client(e.value, [client])[0])}"
            for split in ("validation", "test")
            for e in result.curve(model, when, split)
            if e.round == number
        ]
        card = (tmp_path / f"run/models/client-{client:02d}.card.md").read_text()
        assert (
            f"model of round {number}, {result.metric.heading}: {', '.join(values)}."
            in card.replace("\\", "")
        )


class Client:
    """One client's models by round, a number each, with given scores."""

    def __init__(self, points, metric):
        self.choice, self.points = ModelChoice("own_best", ("personal", "trained"), metric), points
        for number, value, loss, *_ in points:
            score = Score("personal", "trained", "validation", 9, loss, None, value)
            self.choice.update(0, number, torch.tensor([float(number)]), [score])

    @property
    def chosen(self):
        return int(self.choice.choose(0, torch.tensor([-1.0]), -1))


numbers = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.2, 0.3]))


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=7),
    st.sampled_from([METRICS["dice"], METRICS["brier"]]),
)
def test_what_is_held_round_by_round_is_the_best_of_the_whole_curve(scores, metric):
    points = [Point(k, value, loss) for k, (value, loss) in enumerate(scores, start=1)]
    expected = best(points, metric, single_client=True)
    assert Client(points, metric).chosen == (expected.round if expected else -1)
    for count in range(len(points)):  # and so it is after a break
        interrupted, resumed = Client(points[:count], metric), Client([], metric)
        for path, tensor in interrupted.choice.stored(0).items():
            resumed.choice.restore(0, path.rpartition(".")[2], tensor)
        for number, value, loss, *_ in points[count:]:
            score = Score("personal", "trained", "validation", 9, loss, None, value)
            resumed.choice.update(0, number, torch.tensor([float(number)]), [score])
        assert resumed.chosen == Client(points, metric).chosen


# Masks without foreground: round 1 is right everywhere, and has no Dice; rounds 2 and 4 find what
# is not there.
EMPTY = [Point(1, None, 0.01), Point(2, 0.0, 0.3), Point(3, None, 0.02), Point(4, 0.0, 0.005)]


def test_a_right_model_is_no_worse_than_one_with_false_positives_where_there_is_nothing_to_find():
    dice = METRICS["dice"]
    assert best(EMPTY, dice, single_client=True) == (1, 0.01, LOSS, 3)
    assert Client(EMPTY, dice).chosen == 1
    assert [Client(EMPTY[:k], dice).chosen for k in (1, 2, 3)] == [1, 1, 1]
    assert Client(EMPTY[1:], dice).chosen == 3
    # of means over clients the Dice decides: others have foreground
    assert best(EMPTY, dice).round == 2


def test_the_card_names_the_round_of_the_file_where_the_metric_is_undefined():
    def evaluation(point, split):
        fields = {
            "clients": (0,),
            "samples": (9,),
            "loss": (point.loss,),
            "accuracy": (None,),
            "value": (point.value,),
        }
        return Evaluation(point.round, "personal", "trained", split, **fields, metric="dice")

    result = SimpleNamespace(
        metric=METRICS["dice"],
        curve=lambda model, when, split: [evaluation(point, split) for point in EMPTY],
    )
    note = _best_round_note(SimpleNamespace(config=tiny("apple", keep="own_best")), result, 0)
    assert note == "The file holds the model of round 1, loss: validation 0.01000, test 0.01000."


def test_a_checkpoint_of_a_version_that_noted_less_is_refused():
    with pytest.raises(CheckpointError, match="resume with the version"):
        ModelChoice("own_best").restore(0, "noted", torch.tensor([3.0, 0.5]))
