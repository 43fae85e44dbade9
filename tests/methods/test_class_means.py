"""What methods see of features and classes: means, how a server pools them, the pull to them, and
refusals.
"""

import pytest
import torch
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.core.round import Roster
from pomona.methods.base import linear_head, sgd
from pomona.methods.prototypes import class_means
from pomona.methods.prototypes.class_means import ClassMeans
from pomona.methods.prototypes.fedproto import FedProto
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from pomona.testing import class_points
from pomona.testing.task_checks import SURVIVAL
from problems import a_round, quadratics, tiny


def digits(**settings):
    """A scenario of digits with an MLP, and its clients as a method sees them."""
    scenario = Scenario.prepare(tiny("fedproto", **settings))
    sizes = tuple(len(c.train) for c in scenario.partition.clients)
    return scenario, LocalTraining(scenario.objective(), (0, 1, 2, 3), Roster(sizes), a_round())


def points(*sizes):
    """Clients of the points as a method sees them, and rows (n, d) of their own."""
    problem, ids = class_points(*sizes), tuple(range(len(sizes)))
    draw = torch.Generator().manual_seed(1)
    W = torch.randn(len(ids), problem.size, generator=draw, dtype=torch.float64)
    return problem, LocalTraining(problem, ids, Roster(sizes), a_round()), W


def test_features_and_means_are_those_of_the_network():
    scenario, training = digits()
    W = torch.stack([scenario.initial(i) for i in range(4)])
    means, counts = class_means.means_of(training.features(W), 10)
    data = training.objective.data
    for i, (z, y) in enumerate(training.features(W)):
        module = scenario.module()
        module.load_state_dict(training.objective.space.unpack(W[i]))
        rows = data.rows["train"][i]
        with torch.no_grad():
            assert_close(z, module[:-1](data.gather(rows)[0]))
        assert torch.equal(y, data.y[rows])
        assert counts[i].tolist() == [float((y == k).sum()) for k in range(10)]
        for k in range(10):
            expected = z[y == k].mean(0) if (y == k).any() else torch.zeros(8)
            assert_close(means[i, k], expected)


def test_the_head_is_the_last_layer():
    scenario, training = digits()
    head, w = linear_head(training), scenario.initial()
    weight, bias = head.view(w.unsqueeze(0))
    module = scenario.module()
    assert torch.equal(weight[0], module[-1].weight)
    assert torch.equal(bias[0], module[-1].bias)
    assert head == linear_head(scenario.initial)
    assert (head.outputs, head.features, head.columns) == (10, 8, training.layers[-1])


def test_networks_without_such_a_head_and_other_tasks_are_refused():
    problem = quadratics(2)
    with pytest.raises(ConfigError, match=r"ends with nn\.Linear"):
        linear_head(LocalTraining(problem, (0, 1), Roster((2, 2)), a_round()))
    with pytest.raises(ConfigError, match=r"method\.name: fedproto is for targets of kind classes"):
        Scenario.prepare(SURVIVAL.config(FedProto()))


def test_means_are_pooled_by_samples():
    """Three clients of 4, 2 and 6 samples; nobody has the last class, whose mean stays."""
    counts = torch.tensor([[4.0, 0, 0], [1, 1, 0], [0, 6, 0]], dtype=torch.float64)
    means = torch.tensor([[[1.0], [7], [7]], [[6], [2], [7]], [[7], [9], [7]]])
    previous = ClassMeans(torch.full((3, 1), 5.0), torch.tensor([False, True, True]))
    roster = Roster((4, 2, 6))
    uplink = {"class_means": means.flatten(1), "class_counts": counts}
    pooled = class_means.pooled(previous, uplink, (0, 1, 2), roster)
    assert_close(pooled.means, torch.tensor([[10 / 5], [56 / 7], [5.0]]))
    assert pooled.known.tolist() == [True, True, True]
    alike = class_means.pooled(previous, uplink, (0, 1, 2), roster, uniform=True)
    assert_close(alike.means, torch.tensor([[3.5], [5.5], [5.0]]))


def test_counts_that_a_client_invents_move_no_more_than_its_samples_do():
    honest = torch.tensor([[2.0, 2], [1, 3]], dtype=torch.float64)
    lie = torch.tensor([[2.0, 2], [1e9, 3e9]], dtype=torch.float64)
    p, q = (class_means.shares(c, (0, 1), Roster((4, 4))) for c in (honest, lie))
    assert_close(p, q)
    limited = class_means.shares(torch.tensor([[1.0], [9.0]]).double(), (0, 1), Roster((1, 9), 0.5))
    assert_close(limited, torch.tensor([[0.5], [0.5]], dtype=torch.float64))
    for bad in ([-1.0, 3.0], [0.0, 0.0]):
        assert class_means.invalid({"class_counts": torch.tensor(bad)})
    assert class_means.invalid({"class_counts": torch.tensor([0.0, 2.0])}) is None


def test_the_pull_has_the_slope_of_its_formula():
    """Finite differences of F + 0.7 R at a row, one class of three without a mean."""
    problem, training, W = points(7)
    draw = torch.Generator().manual_seed(2)
    means = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    available = torch.tensor([1.0, 0, 1], dtype=torch.float64)
    loss = class_means.attracted(training, means, available, 0.7)
    index = torch.tensor(problem.rows[0][:5])

    def value(w):
        z, y = problem._forward(w, index)[1], problem.y[index]
        distance = sum(((z[j] - means[k]) ** 2).sum() for j, k in enumerate(y) if available[k])
        return problem.gradient(w.unsqueeze(0), [index])[0][0] + 0.7 * distance / (5 * 4)

    losses, G = problem.gradient(W, [index], [loss(index)])
    assert_close(losses[0], value(W[0]))
    for j in range(problem.size):
        step = torch.zeros(problem.size, dtype=torch.float64)
        step[j] = 1e-5
        slope = (value(W[0] + step) - value(W[0] - step)) / 2e-5
        assert_close(G[0, j], slope, rtol=1e-6, atol=1e-8)


def test_sgd_with_losses_moves_one_part_only():
    """Under a loss of one's own, the head or what is below it; decay and momentum leave the rest."""
    problem, training, W = points(4, 6)
    round_ = a_round(epochs=3, batch_size=2, momentum=0.5, weight_decay=0.1)
    plain = [lambda _: lambda outputs, targets, z: problem.criterion(outputs, targets).mean()] * 2
    for columns in problem.layers:
        with_losses = sgd(training, W.clone(), round_, losses=plain, columns=columns)
        expected = sgd(training, W.clone(), round_, columns=columns)
        assert torch.equal(with_losses, expected)
        untrained = torch.ones(problem.size, dtype=torch.bool)
        untrained[columns] = False
        assert torch.equal(with_losses[:, untrained], W[:, untrained])
        assert not torch.equal(with_losses[:, columns], W[:, columns])


def test_the_points_hessian_is_the_slope_of_their_gradient():
    problem = class_points(5, 4)
    draw = torch.Generator().manual_seed(3)
    W, Z = torch.randn(2, 2, problem.size, generator=draw, dtype=torch.float64)
    indices, step = [torch.arange(5), torch.arange(5, 9)], 1e-5
    ahead, behind = (problem.gradient(W + s * Z, indices)[1] for s in (step, -step))
    assert_close(
        problem.hessian(W, indices, Z), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8
    )
