"""Fine-tuning for evaluation only: at the run's lr in every round, while the federation follows the
schedule.
"""

from math import cos, pi

import pytest
import torch
from torch.nn.functional import cross_entropy

from plain_pytorch import Plain, assert_same, averaged, step
from pomona.federation.exchange import ClientRequest
from pomona.federation.round_plan import round_of
from pomona.methods.one_model.fedavg import FedAvgFT
from pomona.methods.one_model.fedprox import FedProxFT
from pomona.methods.shared_parts.fedbabu import FedBABU
from problems import Federation, Quadratics, tiny

each_method = pytest.mark.parametrize(
    "settings",
    [
        FedAvgFT(finetune_epochs=2),
        FedProxFT(finetune_epochs=2),
        FedBABU(shared=1, finetune_epochs=2),
    ],
    ids=lambda settings: settings.name,
)


def single_samples(*samples):
    """Clients with one sample each, a number."""
    return Quadratics(
        torch.tensor(samples, dtype=torch.float64).unsqueeze(1), [[i] for i in range(len(samples))]
    )


def cosine(rounds):
    """The factors of the rounds and of the closing visit, from the schedule's definition."""
    factors = [(1 + cos(pi * k / rounds)) / 2 for k in range(rounds)]
    return [*factors, factors[-1]]


def run_of(rounds):
    return tiny("fedavg", lr=0.5, momentum=0.0, rounds=rounds, lr_schedule="cosine")


@each_method
@pytest.mark.parametrize("rounds", [1, 2, 20])
@pytest.mark.parametrize("samples", [[3.0], [3.0, -1.0]])
def test_under_a_cosine_each_round_fine_tunes_at_the_full_rate_and_trains_at_its_own(
    settings, rounds, samples
):
    """A step of .5 halves the distance to a sample, two leave a quarter; w moves by .5 times the
    factor to the mean.
    """
    config, mean = run_of(rounds), sum(samples) / len(samples)
    run = Federation(settings.method(), single_samples(*samples))
    w = run.initial().item()
    for number, factor in enumerate(cosine(rounds), 1):
        run.round(round_of(config, number))
        for i, a in enumerate(samples):
            assert run.model(i, "global", "received").item() == pytest.approx(w)
            assert run.model(i, "personal", "received").item() == pytest.approx(a + (w - a) / 4)
        w -= 0.5 * factor * (w - mean)
        assert run.server.item() == pytest.approx(w)


@each_method
@pytest.mark.parametrize("rounds", [1, 20])
def test_an_unseen_client_is_fine_tuned_at_the_full_rate(settings, rounds):
    """It comes after the last round, when the rate of a cosine over 20 is 0.006 of the run's."""
    run = Federation(settings.method(), single_samples(3.0, -1.0), members=(0,))
    w = run.initial().item()
    state, row = run.method.server.add_clients(run.server, (1,), run.roster)
    roster = run.roster.plus(1, run.everybody)
    run.clients.add_clients((1,), roster, row)
    round_ = round_of(run_of(rounds), rounds + 1)
    visit = ClientRequest(
        round_, roster, (1,), True, frozenset({"received", "trained"}), True, adapts=True
    )
    run.clients.visit(visit, run.method.server.downlink(state, (1,), roster, round_))
    run.clients.commit((1,))
    assert run.model(1, "personal", "received").item() == pytest.approx(-1 + (w + 1) / 4)
    assert run.model(1, "local", "trained").item() == pytest.approx(
        w - 0.5 * cosine(rounds)[-1] * (w + 1)
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedavg-ft", "fedprox-ft"])
def test_two_phases_are_those_of_plain_pytorch(name):
    """LP-FT: the last layer alone, then all, each with an optimizer of its own."""
    plain = Plain(name, {"finetune_head_epochs": 3, "finetune_epochs": 1}, rounds=1, lr=0.05)
    models, p = plain.networks(), [n / sum(plain.n) for n in plain.n]
    mu = 0.01 if name == "fedprox-ft" else 0.0
    for i, model in enumerate(models):
        initial = [w.detach().clone() for w in model.parameters()]
        steps = plain.sgd(model.parameters())
        for x, y in plain.batches(i, 1):
            d = sum(((a - b) ** 2).sum() for a, b in zip(model.parameters(), initial, strict=True))
            step(steps, cross_entropy(model(x), y) + mu / 2 * d)
    common, result = averaged(models, p), plain.run()
    for i, model in enumerate(models):  # the headline model is what comes after the last round
        model.load_state_dict(common)
        for tuned, epochs, purpose in ((model[-1], 3, "finetuning-head"), (model, 1, "finetuning")):
            steps = plain.sgd(tuned.parameters())
            for x, y in plain.batches(i, 2, epochs, purpose):
                step(steps, cross_entropy(model(x), y))
        assert_same(result.models[i], model)
