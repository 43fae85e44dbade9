"""A callback that looks at the clients' models after a round, and ends the run."""

import pytest
import torch

import pomona
from pomona.federation.callbacks import CallbackList, NullCallback, StopAfter
from problems import tiny

pytestmark = pytest.mark.long


class EndingCallback(NullCallback):
    """Ends a run after a round; collects what it sees."""

    def __init__(self, number):
        self.number, self.seen, self.notes = number, [], []

    def should_stop(self, row, evaluations, models):
        self.seen.append((row.round, evaluations, {i: dict(model) for i, model in models.items()}))
        return row.round == self.number

    def on_note(self, text):
        self.notes.append(text)


def same_models(models, expected):
    """Whether models are equal to the bit."""
    return models.keys() == expected.keys() and all(
        torch.equal(tensor, expected[client][name])
        for client, model in models.items()
        for name, tensor in model.items()
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["apple", "fedavg-ft", "separate"])
def test_an_end_after_a_round_is_a_run_of_so_many_rounds(method, workers, tmp_path):
    two_rounds = pomona.run(tiny(method, rounds=2))
    callback = EndingCallback(2)
    result = pomona.run(tiny(method, rounds=4, workers=workers), tmp_path / "run", callback)
    assert same_models(result.models, two_rounds.models)
    assert [row.round for row in result.rounds] == [1, 2]
    assert result.summary["models"] == two_rounds.summary["models"]
    assert "ended after round 2 by the callback" in callback.notes
    resumed = pomona.run(tiny(method, rounds=4), tmp_path / "run", resume=True)
    assert resumed.summary == result.summary
    longer = pomona.run(tiny(method, rounds=5), tmp_path / "run", resume=True)
    assert same_models(longer.models, pomona.run(tiny(method, rounds=5)).models)


@pytest.mark.parametrize("method", ["apple", "separate", "fedavg"])
def test_the_models_seen_are_those_of_the_round(method):
    """Trained ones of the round itself, received ones of the round before."""
    callback = EndingCallback(9)
    pomona.run(tiny(method, rounds=3), callback=callback)
    headline = tiny(method).method.method().card.headline
    for number, evaluations, models in callback.seen:
        model_round = number if headline[1] == "trained" else number - 1
        (evaluation,) = [e for e in evaluations if e.key == (*headline, "test")]
        assert evaluation.round == model_round
        if model_round:
            assert same_models(models, pomona.run(tiny(method, rounds=model_round)).models)


def test_an_end_between_evaluations_is_evaluated():
    result = pomona.run(tiny("apple", rounds=9, eval_every=5), callback=EndingCallback(3))
    assert [e.round for e in result.curve("personal", "trained")] == [3]
    assert same_models(result.models, pomona.run(tiny("apple", rounds=3, eval_every=5)).models)


def test_a_watched_run_has_the_numbers_of_an_unwatched_one():
    watched = pomona.run(tiny("apple", rounds=3, eval_every=2), callback=EndingCallback(9))
    unwatched = pomona.run(tiny("apple", rounds=3, eval_every=2))
    assert watched.evaluations == unwatched.evaluations
    assert same_models(watched.models, unwatched.models)


def test_an_end_that_was_interrupted_after_its_round_is_no_other_end(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pomona.run(tiny("apple", rounds=5), tmp_path, CallbackList(StopAfter(2), EndingCallback(2)))
    result = pomona.run(tiny("apple", rounds=5), tmp_path, resume=True)
    assert len(result.rounds) == 2
    assert same_models(result.models, pomona.run(tiny("apple", rounds=2)).models)


def test_who_never_took_part_has_no_model_to_look_at():
    callback = EndingCallback(1)
    result = pomona.run(tiny("separate", clients=6, rounds=3, participation=0.5), callback=callback)
    ((_, _, models),) = callback.seen
    assert sorted(models) == list(result.rounds[0].cohort)


def test_of_several_callbacks_each_sees_the_round_and_one_ends_it():
    first, second = EndingCallback(1), EndingCallback(9)
    result = pomona.run(
        tiny("separate", rounds=3), callback=CallbackList(first, NullCallback(), second)
    )
    assert len(result.rounds) == len(first.seen) == len(second.seen) == 1
    assert not hasattr(CallbackList(NullCallback()), "should_stop")
