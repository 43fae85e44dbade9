"""FedCross: rounds in plain PyTorch by each rule, K = 1 as FedAvg, and models that nobody trains."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from plain_pytorch import Plain, assert_same, step
from pomona.core.rng import stream
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.fedcross import FedCross, partners
from problems import Federation, a_round, quadratics, trained, uneven


def flat(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.values()])


def partner(models, k, rule, number):
    """Algorithm 1's CoModelSel by loops over pairs."""
    K, candidates = len(models), [j for j in range(len(models)) if j != k]
    if rule == "in-order":
        return (k + number % (K - 1) + 1) % K
    cosines = {
        j: float(torch.cosine_similarity(flat(models[k]), flat(models[j]), 0)) for j in candidates
    }
    return (min if rule == "lowest" else max)(candidates, key=cosines.get)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["lowest", "highest", "in-order"])
def test_three_rounds_are_those_of_plain_pytorch(rule):
    alpha = 0.8
    plain = Plain("fedcross", {"alpha": alpha, "partner": rule}, rounds=3)
    K, network = len(plain.own), plain.networks()[0]
    models = [{k: t.clone() for k, t in network.state_dict().items()} for _ in range(K)]
    for number in (1, 2, 3):
        order = stream(plain.config.seed, "fedcross", number).permutation(K)
        for i, k in enumerate(order):
            network.load_state_dict(models[k])
            steps = plain.sgd(network.parameters())
            for x, y in plain.batches(i, number):
                step(steps, cross_entropy(network(x), y))
            models[k] = {name: t.clone() for name, t in network.state_dict().items()}
        chosen = [partner(models, k, rule, number) for k in range(K)]
        models = [
            {n: alpha * t + (1 - alpha) * models[c][n] for n, t in model.items()}
            for model, c in zip(models, chosen, strict=True)
        ]
    network.load_state_dict({n: sum(m[n] for m in models) / K for n in models[0]})
    assert_same(plain.run().models[0], network)


def test_one_model_is_fedavg_to_the_bit():
    problem = uneven(5, 3, 1)
    cross, average = trained(FedCross(models=1), problem, 4), trained(FedAvg(), problem, 4)
    assert torch.equal(cross.server.mean, average.server)


def test_several_clients_train_a_model_to_their_mean_and_an_idle_one_stays():
    """Clients 0 and 2 take part; of four members two share each of two models."""
    run = Federation(FedCross(models=2, alpha=1.0).method(), uneven(4, 2, 3, 1))
    first = run.server.models[0].clone()
    run.round(a_round(1), ids=(0, 2))
    trained_models = [reply.uplink["model"] for reply in run.replies]
    number = int(stream(a_round(1).seed, "fedcross", 1).permutation(2)[0])
    expected = (4 * trained_models[0] + 3 * trained_models[1]) / 7
    assert_close(run.server.models[number], expected)
    assert torch.equal(run.server.models[1 - number], first)
    assert_close(run.server.mean, (expected + first) / 2)


def test_equal_models_are_partners_in_order_of_their_numbers():
    models = torch.ones(3, 4) * torch.tensor([[1.0], [2.0], [0.5]])
    assert partners(models, "lowest", 1).tolist() == [1, 0, 0]
    assert partners(models, "highest", 1).tolist() == [1, 0, 0]


def test_every_model_reaches_every_client():
    run = Federation(FedCross().method(), quadratics(4))
    received = [set() for _ in range(4)]
    for number in range(1, 40):
        downlink = run.downlink(a_round(number))
        assert sorted(downlink["model"].index.tolist()) == [0, 1, 2, 3]
        for i, k in enumerate(downlink["model"].index.tolist()):
            received[i].add(k)
    assert all(numbers == {0, 1, 2, 3} for numbers in received)
