"""Fed-RoD: the generic part by a balanced loss, a personal head on top of it; and its
reductions.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from pomona.core.round import Roster
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.fedrod import FedRoD, added, balanced, log_counts
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from problems import PASSES, Federation, Quadratics, a_round, quadratics, tiny, trained

pytestmark = pytest.mark.long


def test_two_rounds_by_hand():
    """Sizes 1 and 3, two steps of .1 a round: phi and g fall towards the sample, h_i what is
    missing at g + h_i.
    """
    samples = torch.tensor([[8.0, 4.0], *[[-8.0, 2.0]] * 3], dtype=torch.float64)
    run = Federation(FedRoD().method(), Quadratics(samples, [[0], [1, 2, 3]]))
    phi, g = run.initial().tolist()
    h = [0.0, 0.0]
    for number in (1, 2):
        run.round(a_round(number, epochs=2))
        trained = []
        for i, (a, b) in enumerate(samples[:2].tolist()):
            assert run.model(i, "global", "received").tolist() == pytest.approx([phi, g])
            assert run.model(i, "personal", "received").tolist() == pytest.approx([phi, g + h[i]])
            own_phi, own_g = phi, g
            for _ in range(2):
                own_phi, own_g, h[i] = (
                    own_phi - 0.1 * (own_phi - a),
                    own_g - 0.1 * (own_g - b),
                    h[i] - 0.1 * (own_g + h[i] - b),
                )
            trained.append((own_phi, own_g))
            assert run.model(i, "local", "trained").tolist() == pytest.approx([own_phi, own_g])
            assert run.model(i, "personal", "trained").tolist() == pytest.approx(
                [own_phi, own_g + h[i]]
            )
            assert run.state(i).head.item() == pytest.approx(h[i])
        phi, g = (trained[0][k] / 4 + 3 * trained[1][k] / 4 for k in (0, 1))
        assert run.server.tolist() == pytest.approx([phi, g])


def test_without_balance_the_generic_part_is_fedavg_to_the_bit():
    """On the quadratics whatever gamma; their loss is not one of classes."""
    problem = quadratics(3, samples=5)
    run, avg = Federation(FedRoD(gamma=0).method(), problem), Federation(FedAvg().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        for model, when in (("global", "received"), ("local", "trained")):
            assert torch.equal(run.model(1, model, when), avg.model(1, model, when))
    assert torch.equal(run.server, avg.server)
    runs = [
        pomona.run(tiny(name, settings))
        for name, settings in (("fed-rod", {"gamma": 0}), ("fedavg", {}))
    ]
    curves = [[e.loss for e in r.curve("global", "received")] for r in runs]
    assert curves[0] == curves[1]


def test_the_personal_head_reaches_what_the_generic_one_misses():
    problem = quadratics(3, samples=4)
    run = trained(FedRoD(), problem, 249, lr=0.1)
    assert_close(run.server, problem.targets.mean(0), atol=1e-8, rtol=0)
    for i in range(3):
        best = problem.targets[4 * i : 4 * i + 4, -1].mean()
        assert_close(
            (run.server[-1:] + run.state(i).head[0]).item(), best.item(), atol=1e-6, rtol=0
        )


def test_a_head_starts_at_nothing_or_as_a_copy():
    for head_start, factor in (("zero", 1.0), ("copy", 2.0)):
        run = Federation(FedRoD(head_start=head_start).method(), quadratics(2))
        run.round(a_round())
        w = run.initial()
        expected = torch.cat([w[:-1], factor * w[-1:]])
        assert torch.equal(run.model(0, "personal", "received"), expected)


def digits(**settings):
    """Clients of the digits as a method sees them, and the common row."""
    scenario = Scenario.prepare(tiny("fed-rod", **settings))
    sizes = tuple(len(c.train) for c in scenario.partition.clients)
    objective = scenario.objective()
    training = LocalTraining(objective, tuple(range(len(sizes))), Roster(sizes), a_round())
    return objective, training, scenario.initial()


def test_the_loss_and_its_gradient_are_the_balanced_softmax():
    """Written out, on a client that lacks classes, and differentiated by PyTorch at the last
    layer's bias.
    """
    objective, training, w = digits(partition={"name": "dirichlet", "beta": 0.2, "min_size": 8})
    rows = objective.data.rows["train"][1][:20]
    labels = objective.data.y[objective.data.rows["train"][1]]
    counts = torch.tensor([float((labels == c).sum()) for c in range(10)])
    class_counts = training.class_counts(1)
    assert torch.equal(class_counts.float(), counts[: len(class_counts)])
    assert not counts[len(class_counts) :].any()
    assert counts.min() == 0
    for gamma in (0.5, 1.0):
        losses, G = objective.gradient(w.unsqueeze(0), [rows], [balanced(training, 1, gamma)])
        outputs, _ = objective.outputs(w, 1, "train")
        order = {int(r): k for k, r in enumerate(objective.data.rows["train"][1])}
        z = outputs[[order[int(r)] for r in rows]].clone().requires_grad_()
        weighted = counts**gamma * z.exp()
        expected = -torch.log(
            weighted.gather(1, objective.data.y[rows].unsqueeze(1)).squeeze(1) / weighted.sum(1)
        ).mean()
        assert_close(losses[0], expected.detach(), rtol=1e-4, atol=1e-4)
        (slope,) = torch.autograd.grad(expected, z)
        assert_close(G[0, -10:], slope.sum(0), rtol=1e-3, atol=1e-4)


def test_equal_frequencies_balance_nothing():
    objective, *_ = digits()
    rows = objective.data.rows["train"][0][:16]
    outputs = torch.randn(16, 10, generator=torch.Generator().manual_seed(1))
    y = objective.data.y[rows]
    shift = log_counts(torch.full((10,), 7), 10).float()
    assert_close(cross_entropy(outputs + shift, y), cross_entropy(outputs, y))


def test_a_class_that_is_missing_counts_next_to_nothing_and_stays_finite():
    assert log_counts(torch.tensor([3, 0, 1]), 5).tolist() == pytest.approx(
        [1.0986, -13.8155, 0.0, -13.8155, -13.8155], abs=1e-4
    )
    assert log_counts(torch.zeros(0, dtype=torch.long), 2).isfinite().all()


@pytest.mark.parametrize(
    "loss",
    [
        {"label_smoothing": 0.1},
        {"class_weights": "balanced"},
        {"label_smoothing": 0.1, "class_weights": "balanced"},
    ],
)
def test_labels_that_are_smoothed_or_weighted_have_a_loss(loss):
    skewed = {"partition": {"name": "dirichlet", "beta": 0.2, "min_size": 8}, "rounds": 2}
    result = pomona.run(tiny("fed-rod", **skewed, model={"name": "mlp", "hidden": [8], **loss}))
    assert all(torch.isfinite(torch.tensor(r.loss)).all() for r in result.rounds)


def test_heads_add_and_their_outputs_too():
    """The row (phi, g + h) answers what g and h answer together on phi's features."""
    objective, _, w = digits()
    head = slice(objective.layers[-1].start, objective.layers[-1].stop)
    h = torch.randn(1, head.stop - head.start, generator=torch.Generator().manual_seed(2))
    personal = w.clone()
    personal[head] = h[0]
    sums = objective.outputs(w, 0, "test")[0] + objective.outputs(personal, 0, "test")[0]
    assert_close(
        objective.outputs(added(w.unsqueeze(0), h, head)[0], 0, "test")[0],
        sums,
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_client_of_one_class_teaches_the_generic_part_nothing():
    """n_c of the other classes is 0, and so is -log(n_y exp(z_y) / (n_y exp(z_y))), whatever z."""
    objective, training, w = digits(partition={"name": "classes", "classes_per_client": 1})
    rows = objective.data.rows["train"][2][:8]
    losses, G = objective.gradient(w.unsqueeze(0), [rows], [balanced(training, 2, 1.0)])
    plain, at_plain = objective.gradient(w.unsqueeze(0), [rows])
    assert losses.item() < 1e-5
    assert G.norm() < 1e-4 * at_plain.norm()
    assert plain.item() > 1
