"""FedSelect: three rounds in plain PyTorch, growth and means by hand, and both limits of sharing."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from plain_pytorch import Plain, assert_same
from pomona.core.round import Roster
from pomona.methods.one_model.fedavg import FedAvgLocal
from pomona.methods.shared_parts.fedselect import FedSelect, grow_masks, server
from problems import PASSES, Federation, a_round, quadratics, tiny, uneven


def flat(layer):
    """A layer's weight and bias, as one."""
    return torch.cat([p.detach().flatten() for p in (layer.weight, layer.bias)])


def put(layer, values):
    """Set them."""
    size = layer.weight.numel()
    with torch.no_grad():
        layer.weight.copy_(values[:size].view_as(layer.weight))
        layer.bias.copy_(values[size:])


def test_three_rounds_are_those_of_plain_pytorch():
    p, alpha = 0.3, 0.5
    settings = {"rate": p, "limit": alpha, "personal_epochs": 2}
    plain = Plain("fedselect", settings, rounds=3)
    models = plain.networks()
    layers = [[m for m in model if hasattr(m, "weight")] for model in models]
    common = [flat(layer) for layer in layers[0]]
    masks = [[torch.zeros_like(w, dtype=torch.bool) for w in common] for _ in models]
    personal = [[w.clone() for w in common] for _ in models]
    for number in (1, 2, 3):
        for i, model in enumerate(models):
            received = [
                o.where(m, w) for o, m, w in zip(personal[i], masks[i], common, strict=True)
            ]
            for layer, w in zip(layers[i], received, strict=True):
                put(layer, w)
            for moves, epochs, purpose in ((True, 2, "personal"), (False, None, "training")):
                steps = plain.sgd(model.parameters())
                for x, y in plain.batches(i, number, epochs=epochs, purpose=purpose):
                    steps.zero_grad()
                    cross_entropy(model(x), y).backward()
                    last = [flat(layer) for layer in layers[i]]
                    steps.step()
                    for layer, w, m in zip(layers[i], last, masks[i], strict=True):
                        put(layer, flat(layer).where(m == moves, w))
            personal[i] = [flat(layer) for layer in layers[i]]
            for m, w, v in zip(masks[i], received, personal[i], strict=True):
                change, personal_count = (v - w).abs().tolist(), int(m.sum())
                shared = sorted((j for j in range(len(m)) if not m[j]), key=lambda j: -change[j])
                count = min(round(p * len(shared)), int(alpha * len(m)) - personal_count)
                m[[j for j in shared[: max(count, 0)] if change[j]]] = True
        for k, w in enumerate(common):
            share = torch.stack([n * (~m[k]).float() for n, m in zip(plain.n, masks, strict=True)])
            total, V = share.sum(0), torch.stack([o[k] for o in personal])
            common[k] = torch.where(total > 0, (share * V).sum(0) / total.clamp_min(1), w)
    assert all(0.3 < m.double().mean() <= alpha for client_masks in masks for m in client_masks)
    result = plain.run()
    for i, model in enumerate(models):
        assert_same(result.models[i], model)


def test_growth_by_hand():
    """Two layers of four: half of what is shared, up to three of four; nothing unchanged."""
    layers = (slice(0, 4), slice(4, 8))
    settings = FedSelect(rate=0.5, limit=0.75)
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 0]]).bool()
    change = torch.tensor([[1.0, 4, 2, 3, 9, 9, 5, 6], [0, 0, 0, 1, 9, 9, 9, 9]])
    expected = torch.tensor([[0, 1, 0, 1, 1, 1, 0, 1], [0, 0, 0, 1, 1, 1, 1, 0]]).bool()
    copy = mask.clone()
    assert torch.equal(grow_masks(mask, change, layers, settings), expected)
    assert torch.equal(mask, copy), "the round may not count"


def test_each_parameter_is_the_mean_of_those_who_share_it():
    w, ids, roster = torch.zeros(4), (0, 1, 2), Roster((1, 2, 5))
    V = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    personal = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1]]).bool()
    mean = server().aggregate(w + 7, {"model": V, "personal": personal}, ids, roster, a_round())
    expected = torch.tensor([(1 + 10 + 45) / 8, (12 + 50) / 7, 3.0, 7.0])
    assert_close(mean, expected)


def test_who_alone_shares_a_parameter_sets_it_however_small_it_is():
    """A client of one sample next to one of a million: its share of a sum is below rounding."""
    w, roster = torch.tensor([0.5, 0.5]), Roster((1_000_000, 1))
    models = torch.tensor([[0.6, 0.6], [0.51, 0.51]])
    uplink = {"model": models, "personal": torch.tensor([[True, False], [False, False]])}
    mean = server().aggregate(w, uplink, (0, 1), roster, a_round(1))
    assert_close(mean, torch.tensor([0.51, 0.6]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"limit": 0.0}])
def test_nothing_of_ones_own_is_fedavg_local_to_the_bit(settings):
    select, fedavg = (
        Federation(s.method(), uneven(5, 3, 2)) for s in (FedSelect(**settings), FedAvgLocal())
    )
    for number in (1, 2, 3):
        select.round(a_round(number, **PASSES))
        fedavg.round(a_round(number, **PASSES))
        for i in range(3):
            ours = select.model(i, "personal", "trained")
            assert torch.equal(ours, fedavg.model(i, "local", "trained"))
    assert torch.equal(select.server, fedavg.server)
    runs = [pomona.run(tiny(*case)) for case in (("fedselect", settings), ("fedavg-local",))]
    curves = [
        [e.loss for e in run.curve(model, "trained")]
        for run, model in zip(runs, ("personal", "local"), strict=True)
    ]
    assert curves[0] == curves[1]


def test_everything_of_ones_own_is_training_alone():
    """From the second round; the server's model stays where nobody shares."""
    problem = quadratics(3, samples=4)
    run = Federation(FedSelect(rate=1.0, limit=1.0).method(), problem)
    first = run.server.clone()
    w = [first - 0.1 * (first - problem.targets[rows].mean(0)) for rows in problem.rows]
    for number in (1, 2, 3):
        run.round(a_round(number))
        for i, rows in enumerate(problem.rows):
            assert_close(run.model(i, "personal", "trained"), w[i])
            w[i] = w[i] - 0.1 * (w[i] - problem.targets[rows].mean(0))
    assert torch.equal(run.server, first)


def test_what_is_ones_own_is_never_sent_and_survives_absence():
    run = Federation(FedSelect(rate=0.4, limit=0.8).method(), quadratics(3, samples=4, d=9))
    for number in (1, 2):
        w = run.server.clone()
        run.round(a_round(number))
        for reply in run.replies:
            mask = reply.uplink["personal"]
            assert 0 < mask.sum() < 9
            assert torch.equal(reply.uplink["model"][mask], w[mask])
            assert not torch.equal(reply.uplink["model"][~mask], w[~mask])
    state = run.state(1)
    run.round(a_round(3), ids=(0, 2))
    run.round(a_round(4))
    mask = state.mask[0]
    assert torch.equal(run.model(1, "personal", "received")[mask], state.own[0, mask])
