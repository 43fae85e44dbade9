"""CFL: averages within clusters, and when and how clusters split."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pomona
from pomona.config import resolve
from pomona.methods.mixtures.cfl import CFL, bipartition
from pomona.methods.one_model.fedavg import FedAvg
from problems import Federation, Notes, Quadratics, a_round, quadratics, tiny

pytestmark = pytest.mark.long


def groups():
    """Clients 0, 2, 5 near (4, 0, 1), clients 1, 3, 4 near (-4, 0, 1): opposite updates at their
    common mean.
    """
    sign = torch.tensor([1, -1, 1, -1, -1, 1], dtype=torch.float64).unsqueeze(1)
    noise = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Quadratics(
        sign * torch.tensor([[4.0, 0, 0]]) + torch.tensor([[0, 0, 1.0]]) + 0.1 * noise,
        [[i] for i in range(6)],
    )


def run_of(problem, rounds, ids=None, **settings):
    run = Federation(CFL(**{"eps_mean": 0.1, "eps_max": 0.4, **settings}).method(), problem)
    for number in range(1, rounds + 1):
        run.round(a_round(number, lr=0.5), ids)
    return run


def test_without_thresholds_met_it_is_fedavg_to_the_bit():
    """Equal sizes: the plain mean is FedAvg's. No mean update is shorter than 0."""
    problem = quadratics(4, samples=3)
    cfl = Federation(CFL(eps_mean=0.0, warmup_rounds=0).method(), problem)
    avg = Federation(FedAvg().method(), problem)
    for number in range(1, 6):
        for run in (cfl, avg):
            run.round(a_round(number, epochs=2, batch_size=2, momentum=0.9))
    assert torch.equal(cfl.server.models, avg.server.unsqueeze(0))


def test_means_do_not_weigh_samples():
    """Samples {4} and {1, 1, 1}, w0, one step of .5: the plain mean of .5 w0 + 2 and .5 w0 + .5."""
    problem = Quadratics(
        torch.tensor([4.0, 1, 1, 1], dtype=torch.float64).unsqueeze(1), [[0], [1, 2, 3]]
    )
    run = Federation(CFL().method(), problem)
    run.round(a_round(lr=0.5))
    assert run.server.models.item() == pytest.approx(0.5 * run.initial().item() + 1.25)


def test_groups_with_opposite_updates_part_and_reach_their_own_optima():
    problem = groups()
    run = run_of(problem, 60, warmup_rounds=0)
    assert run.server.labels.tolist() == [0, 1, 0, 1, 1, 0]
    for members, cluster in (([0, 2, 5], 0), ([1, 3, 4], 1)):
        assert_close(
            run.server.models[cluster], problem.targets[members].mean(0), atol=1e-6, rtol=0
        )
        for i in members:
            assert torch.equal(
                run.model(i, "personal", "received"), run.model(members[0], "personal", "received")
            )
    assert [int(r.info["cluster"]) for r in run.replies] == [0, 1, 0, 1, 1, 0]


def test_nobody_parts_before_the_warm_up_is_over():
    """The thresholds are met long before: the split comes in round 9, with eight rounds of
    warm-up.
    """
    assert len(run_of(groups(), 8, warmup_rounds=8).server.models) == 1
    assert len(run_of(groups(), 9, warmup_rounds=8).server.models) == 2


def test_a_pair_stays_together():
    problem = Quadratics(torch.tensor([[4.0], [-4.0]], dtype=torch.float64), [[0], [1]])
    run = run_of(problem, 30, warmup_rounds=0, eps_mean=10.0, eps_max=0.0)
    assert len(run.server.models) == 1
    assert_close(run.server.models, torch.zeros(1, 1, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("mean", "largest", "splits"), [(1.01, 0.99, 2), (0.99, 0.99, 1), (1.01, 1.01, 1)]
)
def test_both_thresholds_decide(mean, largest, splits):
    """Thresholds just above and below the norms of the first round's updates, computed from the
    targets: dW = .5 (a - w).
    """
    problem = groups()
    run = Federation(CFL().method(), problem)
    updates = 0.5 * (problem.targets - run.initial())
    thresholds = {
        "eps_mean": mean * float(updates.mean(0).norm()),
        "eps_max": largest * float(updates.norm(dim=1).max()),
    }
    absolute = run_of(problem, 1, warmup_rounds=0, units="absolute", **thresholds)
    unit = float(updates.norm(dim=1).mean())
    relative = run_of(problem, 1, warmup_rounds=0, **{k: v / unit for k, v in thresholds.items()})
    for got in (absolute, relative):
        assert len(got.server.models) == splits


def test_gamma_keeps_together_what_noise_may_have_parted():
    """The halves' closest pair across has similarity a: they part for gamma below sqrt((1 - a) / 2)
    alone.
    """
    problem = groups()
    run = Federation(CFL().method(), problem)
    units = torch.nn.functional.normalize(problem.targets - run.initial(), dim=1)
    across = float((units @ units.T)[[0, 2, 5]][:, [1, 3, 4]].max())
    edge = math.sqrt((1 - across) / 2)
    for gamma, clusters in ((0.99 * edge, 2), (min(1.01 * edge, 1.0), 1)):
        settings = {
            "warmup_rounds": 0,
            "units": "absolute",
            "eps_mean": 1e9,
            "eps_max": 0.0,
            "gamma_max": gamma,
        }
        assert len(run_of(problem, 1, **settings).server.models) == clusters


@pytest.mark.parametrize("seed", [0, 2])
def test_defaults_find_the_groups_of_a_network(seed):
    """Twelve clients of alike data in four groups, each turned by a quarter more: the labels are
    the groups.
    """
    config = resolve(
        {
            "method": {"name": "cfl"},
            "data": {"name": "digits"},
            "partition": {"name": "iid", "turn_groups": 4},
            "rounds": 16,
            "batch_size": 16,
            "lr": 0.3,
            "seed": seed,
            "workers": 1,
        }
    )
    result = pomona.run(config)
    labels = result.rounds[-1].info["cluster"].reshape(4, 3)
    assert (labels == labels[:, :1]).all()
    assert len(np.unique(labels)) == 4


def test_a_run_without_a_split_says_so():
    notes = Notes()
    pomona.run(tiny("cfl", rounds=2), callback=notes)
    assert ["never split" in text for text in notes.said] == [True]


def test_a_split_averages_within_the_new_clusters_at_once():
    problem = groups()
    run = run_of(problem, 1, warmup_rounds=0, units="absolute", eps_mean=1e9, eps_max=0.0)
    trained = 0.5 * (problem.targets + run.initial())
    for cluster in (0, 1):
        assert_close(run.server.models[cluster], trained[run.server.labels == cluster].mean(0))


def test_norms_are_shown():
    problem = groups()
    run = run_of(problem, 2, eps_mean=0.0)
    first = 0.5 * (problem.targets - run.initial())
    second = 0.5 * (problem.targets - (run.initial() + first.mean(0)))
    for i, reply in enumerate(run.replies):
        assert_close(reply.info["update_norm"], second[i].norm())
        assert_close(
            reply.info["cluster_norms"],
            torch.stack([first.mean(0).norm(), first.norm(dim=1).max()]),
        )


def test_a_cluster_splits_only_when_it_is_complete_and_absent_ones_keep_their_model():
    problem = groups()
    assert len(run_of(problem, 30, ids=(0, 1, 2, 3, 4), warmup_rounds=0).server.models) == 1
    run = run_of(problem, 30, warmup_rounds=0)
    model = run.server.models[1].clone()
    run.round(a_round(31, lr=0.5), ids=(0, 5))
    assert torch.equal(run.server.models[1], model)
    assert_close(
        run.server.models[0],
        0.5 * (run.model(0, "personal", "received") + problem.targets[[0, 5]].mean(0)),
    )


def test_clusters_do_not_depend_on_the_order_of_clients():
    problem, order = groups(), [4, 2, 0, 5, 1, 3]
    shuffled = Quadratics(problem.targets[order], problem.rows)
    labels = run_of(problem, 30, warmup_rounds=0).server.labels[order]
    shuffled_labels = run_of(shuffled, 30, warmup_rounds=0).server.labels
    assert torch.equal(labels == labels[0], shuffled_labels == shuffled_labels[0])


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_bipartition_is_the_optimum(n, seed):
    """No other halves have a smaller largest similarity across: all of them are tried."""
    updates = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    units = torch.nn.functional.normalize(updates, dim=1)
    similarity = (units @ units.T).numpy()

    def across(half):
        return similarity[np.ix_(half, ~half)].max()

    candidates = [
        np.array([False, *(bool(k >> i & 1) for i in range(n - 1))]) for k in range(1, 2 ** (n - 1))
    ]
    got = bipartition(similarity)
    assert not got[0]
    assert across(got) == min(across(half) for half in candidates)
