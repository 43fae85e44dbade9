"""A silo that reports false scores neither ends a study early nor goes unnamed."""

from dataclasses import replace

import pytest

import pomona
from federation_in_process import audited
from pomona.experiments.grid import choose
from pomona.record.run_folder import load
from pomona_federation.server.search_study import Trial, _single_silo_notes
from pomona_federation.silo import client_app

pytestmark = pytest.mark.long
RUN = {"rounds": 6, "stop": {"patience": 2}, "metric": "accuracy", "local_epochs": 4}


def false(patch, last=2):
    """Make silo-1 report all its validation samples as right in a round, and none later."""
    answer = client_app.ClientApp.answer

    def answers(self, task, enclosed):
        body, uplink = answer(self, task, enclosed)
        if self.silo.file.name == "silo-1":
            value = 1.0 if task.number <= last else 0.0
            scores = [
                replace(s, accuracy=value, value=value, interval=None)
                if s.split == "validation" and s.samples
                else s
                for s in body.scores
            ]
            body = body.model_copy(update={"scores": type(body.scores)(scores)})
        return body, uplink

    patch.setattr(client_app.ClientApp, "answer", answers)


def notes(federation):
    return [e["text"] for e in audited(federation.server / "run", "note")]


def test_false_scores_of_one_in_three_silos_do_not_end_a_study(world):
    federation = world.federation(method={"name": "fedavg"}, run=RUN)
    whole_run = pomona.run(federation.simulation)
    false(world.patch)
    federation.run()
    deployed = load(federation.server / "run")
    assert len(deployed.rounds) == len(whole_run.rounds)
    warnings = [text for text in notes(federation) if "alone would decide" in text]
    assert warnings
    assert all(note.startswith("silo-1, round ") for note in warnings)
    assert "accuracy on validation" in warnings[0]
    assert {*warnings} <= {note.text for note in deployed.notes}


def test_a_silo_whose_scores_alone_choose_the_trial_of_a_search_is_named():
    """The mean of what silos report decides; one of three moves it by a third of its lie."""
    honest = ({"north": 0.6, "south": 0.6, "west": 0.6}, {"north": 0.7, "south": 0.7, "west": 0.7})
    false = [scores | {"south": 1.0 - k} for k, scores in enumerate(honest)]

    def winner_and_silos(scores):
        trials = [
            Trial(number=k, agreement="", point={}, score=sum(s.values()) / 3, silos=s)
            for k, s in enumerate(scores)
        ]
        winner = choose([trial.score for trial in trials])
        return winner, [note.partition("'")[0] for note in _single_silo_notes(trials, winner)]

    assert winner_and_silos(honest) == (1, [])
    assert winner_and_silos(false) == (0, ["south"])
