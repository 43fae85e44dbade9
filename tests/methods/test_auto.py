"""auto: each of the four is what it is alone, and a client takes the best on its validation samples."""

import pytest
import torch

import pomona
from pomona.methods.mixtures.auto import FOUR, Auto
from pomona.testing import Federation, class_points
from problems import PASSES, a_round, tiny, trained, uneven

pytestmark = pytest.mark.long

MODELS = {"alone": "personal", "average": "local", "shared": "personal", "mixed": "personal"}


@pytest.mark.parametrize("name", FOUR)
def test_each_of_the_four_is_what_it_is_alone_to_the_bit(name):
    problem = uneven(5, 3, 2)
    auto, single = Federation(Auto().method(), problem), Federation(FOUR[name].method(), problem)
    for number, ids in ((1, None), (2, (0, 2)), (3, None)):
        auto.round(a_round(number, **PASSES), ids)
        single.round(a_round(number, **PASSES), ids)
        for i in ids or (0, 1, 2):
            ours, theirs = auto.model(i, name, "trained"), single.model(i, MODELS[name], "trained")
            assert torch.equal(ours, theirs)


def test_the_others_get_the_core_that_a_newcomer_has():
    run = Federation(Auto().method(), uneven(5, 3, 2))
    run.only(0, 1)
    run.round(a_round(1, **PASSES))
    run.only(0, 1, 2)
    assert torch.equal(run.server.mixed.cores[2], run.state(2).mixed.core[0])
    assert torch.equal(run.server.mixed.cores[2], run.initial())


def test_the_least_loss_on_validation_samples_decides():
    problem = class_points(5, 4, 3)
    run = Federation(Auto().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        for i, reply in enumerate(run.replies):
            models = {name: run.model(i, name, "trained") for name in FOUR}
            losses = {n: problem.losses(w, i, "validation").mean() for n, w in models.items()}
            assert reply.info["losses"].tolist() == [float(v) for v in losses.values()]
            best = models[min(losses, key=losses.get)]
            assert torch.equal(run.model(i, "personal", "trained"), best)


def test_a_run_reports_the_four_beside_the_choice_and_test_samples_choose_nothing():
    result = pomona.run(tiny("auto", {}, rounds=2))
    last = {
        name: [result.curve(name, "trained", split)[-1].loss for split in ("validation", "test")]
        for name in ("personal", *FOUR)
    }
    for i in range(4):
        validation = {name: last[name][0][i] for name in FOUR}
        chosen = min(validation, key=validation.get)
        assert last["personal"][0][i] == validation[chosen]
        assert last["personal"][1][i] == last[chosen][1][i]


def test_nothing_that_is_sent_depends_on_validation_samples():
    problem = class_points(5, 4, 3)
    uplinks = []
    for split in ([[0], [5], [9]], [[1, 2], [6], [10]]):
        problem.data.rows["validation"] = [torch.tensor(rows) for rows in split]
        run = trained(Auto(), problem, 2)
        uplinks.append([reply.uplink for reply in run.replies])
    for a, b in zip(*uplinks, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)
