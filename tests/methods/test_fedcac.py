"""FedCAC: critical parameters, overlaps and thresholds by hand, and both limits of sharing."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvgLocal
from pomona.methods.shared_parts.fedcac import FedCAC, critical, neighbours, overlaps
from problems import PASSES, a_round, quadratics, trained, uneven

LAYERS = (slice(0, 4), slice(4, 7), slice(7, 8))


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.5, 1.0])
def test_critical_are_the_most_sensitive_parameters_of_each_layer(tau):
    c = torch.rand(3, 8, generator=torch.Generator().manual_seed(1))
    mask = critical(c, LAYERS, tau)
    for row, row_mask in zip(c, mask, strict=True):
        for layer in LAYERS:
            v = row[layer]
            largest = sorted(range(len(v)), key=lambda k, values=v: -values[k])[: int(tau * len(v))]
            assert row_mask[layer].nonzero().squeeze(1).tolist() == sorted(largest)


def test_of_equal_sensitivities_the_first_are_critical():
    assert critical(torch.ones(1, 8), LAYERS, 0.5).tolist() == [
        [True, True, False, False, True, *3 * [False]]
    ]


@pytest.mark.parametrize(
    ("zeros", "count"), [(700, 300), (501, 499), (500, 500), (300, 500), (1000, 0)]
)
def test_what_has_no_sensitivity_is_never_critical(zeros, count):
    """Of 1000 at tau = 1/2: as the threshold of published code is then the smallest that is not
    0.
    """
    c = torch.cat([torch.zeros(zeros), torch.arange(1, 1001 - zeros) / 1000])[
        torch.randperm(1000, generator=torch.Generator().manual_seed(zeros))
    ]
    mask = critical(c.unsqueeze(0), (slice(0, 1000),), 0.5)[0]
    published = c >= (
        c[c > 0].min() if zeros > 500 and (c > 0).any() else c.sort(descending=True).values[499]
    )
    assert int(mask.sum()) == count
    assert torch.equal(mask, published & (c > 0))


def test_overlaps_by_hand():
    """Masks 1100, 1010, 1100, 0000: pairs have 2, 1 or 0 of 2 in common."""
    masks = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    expected = torch.tensor([[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]], dtype=torch.float64)
    assert_close(overlaps(masks)[:3, :3], expected)
    assert not overlaps(masks)[3].any()


def test_the_threshold_rises_from_the_mean_to_the_largest():
    """Overlaps 0.9, 0.5, 0.1 of three pairs: mean 0.5; at half way 0.7, at the end 0.9, then
    nobody.
    """
    shared = torch.tensor([[1, 0.9, 0.5], [0.9, 1, 0.1], [0.5, 0.1, 1]], dtype=torch.float64)
    members, oneself = torch.ones(3, dtype=torch.bool), torch.eye(3, dtype=torch.bool)
    closest = oneself.clone()
    closest[0, 1] = closest[1, 0] = True
    at_mean = closest.clone()
    at_mean[0, 2] = at_mean[2, 0] = True
    assert torch.equal(neighbours(shared, members, 0.0), at_mean)
    assert torch.equal(neighbours(shared, members, 0.5), closest)
    assert torch.equal(neighbours(shared, members, 1.0), closest)
    assert torch.equal(neighbours(shared, members, 1.01), oneself)
    assert torch.equal(neighbours(shared, torch.tensor([True, False, False]), 0.0), oneself)


def test_nothing_critical_is_fedavg_local_to_the_bit():
    problem = uneven(5, 3, 2)
    a, b = (trained(FedCAC(tau=0.0), problem, 4), trained(FedAvgLocal(), problem, 4))
    for i in range(3):
        assert torch.equal(a.model(i, "personal", "received"), b.model(i, "global", "received"))
        assert torch.equal(a.model(i, "personal", "trained"), b.model(i, "local", "trained"))


@pytest.mark.parametrize("sizes", [(5, 3, 2), (5, 3)])
def test_everything_critical_is_the_own_model_once_nobody_shares(sizes):
    """tau = 1: the overlaps are all 1, and so is the threshold.

    Up to round beta the plain mean is shared, then nothing.
    """
    run = trained(FedCAC(tau=1.0, beta=2), uneven(*sizes), 2)
    for number, shared in ((3, True), (4, False)):
        models = run.server.models.clone()
        run.round(a_round(number, **PASSES))
        for i in run.ids:
            assert_close(
                run.model(i, "personal", "received"), models.mean(0) if shared else models[i]
            )


def test_two_clients_share_nothing_critical_past_beta():
    """One pair has one overlap: it is the mean and the largest, whatever the masks."""
    shared = torch.tensor([[1, 0.3], [0.3, 1]], dtype=torch.float64)
    members = torch.ones(2, dtype=torch.bool)
    assert neighbours(shared, members, 1.0).all()
    assert torch.equal(neighbours(shared, members, 1.01), torch.eye(2, dtype=torch.bool))


def test_a_round_by_hand():
    """Round 3 from round 2: critical parameters are from the mean of the neighbours, the rest from
    that of all.
    """
    problem = quadratics(4, samples=3)
    run = trained(FedCAC(tau=0.5, beta=10), problem, 2, lr=0.3)
    bank = run.server
    change = [
        run.model(i, "personal", "trained") - run.model(i, "personal", "received") for i in range(4)
    ]
    masks = [
        critical((d * bank.models[i]).abs().unsqueeze(0), problem.layers, 0.5)[0]
        for i, d in enumerate(change)
    ]
    assert torch.equal(torch.stack(masks), bank.masks)
    shared = overlaps(bank.masks)
    pairs = shared[~torch.eye(4, dtype=torch.bool)]
    threshold = pairs.mean() + 0.2 * (pairs.max() - pairs.mean())
    run.round(a_round(3, lr=0.3))
    for i in range(4):
        neighbourhood = [j for j in range(4) if j == i or shared[i, j] >= threshold]
        expected = torch.where(masks[i], bank.models[neighbourhood].mean(0), bank.model)
        assert_close(run.model(i, "personal", "received"), expected)


def test_past_beta_critical_parameters_are_the_own_ones():
    problem = quadratics(4, samples=3)
    run = trained(FedCAC(beta=1), problem, lr=0.3)
    bank = run.server
    run.round(a_round(4, lr=0.3))
    for i in range(4):
        assert_close(
            run.model(i, "personal", "received"),
            torch.where(bank.masks[i], bank.models[i], bank.model),
        )
