"""MOON: the contrastive loss and its gradient, its inputs, and its reductions to FedAvg."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from pomona.core.round import Roster
from pomona.methods.local_sgd import Cached
from pomona.methods.one_model.moon import MOON, contrast, contrasted
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from problems import Federation, a_round, quadratics, tiny


def digits():
    """A scenario of digits with an MLP, and its clients as a method sees them."""
    scenario = Scenario.prepare(tiny("moon"))
    sizes = tuple(len(c.train) for c in scenario.partition.clients)
    return scenario, LocalTraining(scenario.objective(), (0, 1, 2, 3), Roster(sizes), a_round())


def test_the_contrast_is_the_papers():
    z, v, w = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def cos(a, b):
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    for tau in (0.1, 0.5, 2.0):
        p, q = (torch.exp(cos(z, v) / tau), torch.exp(cos(z, w) / tau))
        assert_close(contrast(z, v, w, tau), -torch.log(p / (p + q)).mean())
    assert contrast(v, v, -v, 0.1).item() == pytest.approx(0, abs=1e-8)
    assert contrast(z, v, v, 0.5).item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


def test_features_have_their_samples_whatever_the_order():
    scenario, training = digits()
    rows, w = training.objective.data.rows["train"][1], scenario.initial()
    cached = Cached.features(training.objective, w, 1)
    hidden = scenario.module()[:-1]
    with torch.no_grad():
        scenario_rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))][
            :9
        ]
        expected = hidden(training.objective.data.gather(scenario_rows)[0])
    assert_close(cached.lookup(scenario_rows), expected)


def test_loss_and_gradient_are_those_of_the_sum():
    """Differentiated by PyTorch through the module itself, with three different models."""
    scenario, training = digits()
    objective, space = training.objective, training.objective.space
    v, w, last = (scenario.initial(client) for client in (0, 1, 2))
    index = objective.data.rows["train"][3][:12]
    settings = MOON(mu=3.0, temperature=0.4)
    loss = contrasted(
        settings, training, *(Cached.features(objective, row, 3) for row in (w, last))
    )(index)
    losses, G = objective.gradient(v.unsqueeze(0), [index], [loss])

    x, y = objective.data.gather(index)
    passes = []
    for row in (v, w, last):
        module = scenario.module()
        module.load_state_dict(space.unpack(row))
        passes.append((module, module[:-1](x.clone())))
    (module, z), (_, p), (_, q) = passes
    expected = cross_entropy(module[-1](z), y) + 3.0 * contrast(z, p.detach(), q.detach(), 0.4)
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    assert_close(losses[0], expected.detach())
    assert_close(G[0], torch.cat([g.flatten() for g in gradients]), rtol=1e-4, atol=1e-6)


def losses_of(result):
    return [r.loss for r in result.rounds], [e.loss for e in result.curve("global", "received")]


def test_without_the_contrast_it_is_fedavg_to_the_bit():
    assert losses_of(pomona.run(tiny("moon", {"mu": 0.0}))) == losses_of(pomona.run(tiny("fedavg")))


def test_its_first_round_is_fedavgs_and_the_second_is_not():
    """In round 1 both models that features are compared with are the initial one: the contrast is
    log 2, its slope 0.
    """
    moon, avg = (
        pomona.run(tiny(name, settings))
        for name, settings in (("moon", {"mu": 4.0}), ("fedavg", {}))
    )
    # the first is before round 1
    (first, second), (plain, plain_second) = (
        [e.loss for e in r.curve("global", "received")][1:3] for r in (moon, avg)
    )
    assert_close(list(first), list(plain))
    assert max(abs(a - b) for a, b in zip(second, plain_second, strict=True)) > 1e-3


def test_training_turns_features_towards_the_global_model():
    """The cosine of trained features to the received ones is larger, that to the last local ones
    smaller, than FedAvg's.
    """
    scenario, training = digits()
    w, last = (scenario.initial(client) for client in (1, 2))
    pair = [Cached.features(training.objective, row, 0) for row in (w, last)]
    contrasts = []
    for mu in (0.0, 5.0):
        single = LocalTraining(
            training.objective, (0,), training.roster, a_round(epochs=20, batch_size=16)
        )
        method = MOON(mu=mu).method()
        state, _, _ = method.client.train(
            last.unsqueeze(0).clone(), {"model": w.unsqueeze(0)}, single, single.round
        )
        z = Cached.features(training.objective, state[0], 0).values
        contrasts.append(contrast(z, *(cached.values for cached in pair), 0.5).item())
    assert contrasts[1] < contrasts[0]


def test_the_last_model_is_the_trained_one_and_absent_clients_keep_theirs():
    run = Federation(MOON().method(), quadratics(3))
    run.round(a_round(1))
    last = run.state(1).clone()
    for i in (0, 1, 2):
        assert torch.equal(run.state(i)[0], run.model(i, "local", "trained"))
    run.round(a_round(2), ids=(0, 2))
    assert torch.equal(run.state(1), last)
