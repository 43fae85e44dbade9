"""Evaluations share common work: fewer passes over the samples, bit-identical numbers."""

from collections import Counter

import pytest
import torch

import pomona
from pomona.federation.scoring import Examination
from pomona.metrics.metric import ACCURACY
from pomona.objective.pytorch import Estimates, TorchObjective
from pomona.scenario import Scenario
from problems import tiny

pytestmark = pytest.mark.long

NORMED = {"model": {"name": "networks:hidden"}, "rounds": 2, "workers": 1}


@pytest.fixture
def scenario():
    return Scenario.prepare(tiny("fedavg", **NORMED))


def test_a_model_is_known_as_the_same_tensor_unchanged():
    rows, estimates = torch.zeros(2, 3), Estimates()
    row = rows[0]
    estimates.put(row, 1, [torch.ones(1)])
    assert estimates.get(row, 1) == [torch.ones(1)]
    assert estimates.get(row, 2) is None
    assert estimates.get(rows[0], 1) is None  # another tensor on the same memory
    rows.add_(1)  # changes the row too
    assert estimates.get(row, 1) is None


def test_statistics_are_estimated_once_for_all_splits_and_anew_after_a_change(
    scenario, monkeypatch
):
    objective, estimated = scenario.objective(), []
    estimate = TorchObjective._estimate_statistics
    monkeypatch.setattr(
        TorchObjective,
        "_estimate_statistics",
        lambda self, n, c: estimated.append(c) or estimate(self, n, c),
    )

    def losses(row, client, split):
        return objective.losses(row, client, split)

    def anew(row, client, split):
        return scenario.objective().losses(row.clone(), client, split)

    row = scenario.initial()
    for client in (0, 1):
        for split in ("validation", "test"):
            assert torch.equal(losses(row, client, split), anew(row, client, split))
    assert Counter(estimated) == {0: 3, 1: 3}  # once for both splits, and for each split anew
    # moves the network's own statistics
    objective.gradient(row.unsqueeze(0), [objective.data.rows["train"][0][:5]])
    assert torch.equal(losses(row, 1, "test"), anew(row, 1, "test"))
    row.mul_(1.5)
    assert torch.equal(losses(row, 1, "test"), anew(row, 1, "test"))
    tensors, expected = (o.tensors(row, 1) for o in (objective, scenario.objective()))
    assert all(torch.equal(tensors[k], expected[k]) for k in expected)


@pytest.mark.parametrize("name", ["fedavg", "apfl"])
def test_a_run_with_batchnorm_is_what_it_is_without_sharing(name, monkeypatch):
    shared = pomona.run(tiny(name, **NORMED))
    monkeypatch.setattr(Estimates, "get", lambda *_: None)
    unshared = pomona.run(tiny(name, **NORMED))
    assert shared.evaluations == unshared.evaluations
    assert shared.final == unshared.final


def test_at_the_end_each_model_passes_once_over_each_split(scenario, monkeypatch):
    passes, batchwise = Counter(), TorchObjective.batchwise

    def counted(self, row, client, split, reduce):
        passes[client, split] += 1
        return batchwise(self, row, client, split, reduce)

    monkeypatch.setattr(TorchObjective, "batchwise", counted)
    row = scenario.initial()
    models = {("global", "received"): row, ("local", "trained"): row + 0.01}
    objective = scenario.objective()
    task = objective.data.task
    assert task.examine is task.reduce
    answers, figures = Examination(objective, ACCURACY, 0, 0, models, None).final_metrics(
        ("local", "trained")
    )
    assert passes == {(0, "validation"): 2, (0, "test"): 2}
    outputs, targets = objective.outputs(models["local", "trained"], 0, "test")
    assert (answers[0] == outputs.numpy()).all()
    assert (answers[1] == targets.numpy()).all()
    assert [(f["model"], f["when"], f["split"]) for f in figures] == [
        (*key, split) for key in models for split in ("validation", "test")
    ]
    metrics = Examination(objective, ACCURACY, 0, 0, models, None).metrics([("local", "trained")])
    assert metrics == figures[2:]


def test_a_model_that_is_not_kept_has_no_figures(scenario):
    examination = Examination(scenario.objective(), ACCURACY, 0, 0, {}, None)
    assert examination.final_metrics(("global", "received")) == (None, [])
    assert examination.metrics([("global", "received")]) == []
    assert examination.best_worst_masks(("global", "received")) is None


def test_statistics_are_estimated_without_dropout_so_that_runs_repeat():
    dropping = {"name": "networks:with_dropout"}
    runs = [
        pomona.run(tiny("fedavg", **{**NORMED, "model": dropping, "workers": w})) for w in (1, 1, 2)
    ]
    assert runs[0].evaluations == runs[1].evaluations == runs[2].evaluations
    dropped, plain = (
        Scenario.prepare(tiny("fedavg", **{**NORMED, "model": m}))
        for m in (dropping, NORMED["model"])
    )
    row = plain.initial()
    assert torch.equal(
        dropped.objective().losses(row, 0, "test"), plain.objective().losses(row, 0, "test")
    )
