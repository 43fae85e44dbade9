"""IFCA: FedAvg with one model, the groups with two, and a model that no client chose."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from test_partners import GROUPS, two_groups
from torch.testing import assert_close

from pomona.federation.exchange import stack
from pomona.methods.base import argmin_loss
from pomona.methods.mixtures.ifca import IFCA, entry
from pomona.methods.one_model.fedavg import FedAvg
from problems import Federation, Quadratics, a_round, judged, quadratics, trained, uneven


def test_one_model_is_fedavg_to_the_bit():
    problem = uneven(5, 3, 1)
    ifca, fedavg = (trained(IFCA(clusters=1), problem, 4), trained(FedAvg(), problem, 4))
    assert torch.equal(ifca.server.models[0], fedavg.server)
    assert torch.equal(ifca.model(0, "personal", "received"), fedavg.model(0, "global", "received"))
    assert ifca.method.server.closing(ifca.server, ifca.roster, a_round()) is None


def test_clients_choose_by_loss_and_models_are_means_of_who_chose_them():
    """Round 1 by hand on clients of 4, 2 and 3 samples; models in the downlink are the server's."""
    problem = uneven(4, 2, 3)
    run = Federation(IFCA(clusters=3).method(), problem)
    models = run.server.models.clone()
    downlink = run.downlink(a_round())
    assert all(torch.equal(downlink[entry(k)].bank[0], w) for k, w in enumerate(models))
    run.round(a_round())
    centres = [problem.targets[r].mean(0) for r in problem.rows]
    # the losses differ by the distance alone
    nearest = [int(((models - c) ** 2).sum(1).argmin()) for c in centres]
    assert [int(r.info["cluster"]) for r in run.replies] == nearest
    trained = [models[k] - 0.1 * (models[k] - c) for k, c in zip(nearest, centres, strict=True)]
    for k, sizes in (
        (k, [(n, i) for i, n in enumerate((4, 2, 3)) if nearest[i] == k]) for k in range(3)
    ):
        total = sum(n for n, _ in sizes)
        expected = sum(n / total * trained[i] for n, i in sizes) if sizes else models[k]
        assert_close(run.server.models[k], expected)


def test_two_groups_are_found_once_each_is_nearer_to_another_model():
    """From models at 0.5 and -0.5 on the line between the groups' optima, 2 and -2."""
    run = Federation(IFCA(clusters=2).method(), two_groups())
    run.server = replace(run.server, models=torch.tensor([[0.5], [-0.5]]).double().repeat(1, 6))
    for number in range(1, 7):
        run.round(a_round(number, epochs=2, batch_size=4, lr=0.1))
    chosen = run.server.labels.squeeze(1).numpy()
    assert len(set(chosen[GROUPS == 0])) == len(set(chosen[GROUPS == 1])) == 1
    assert chosen[0] != chosen[3]
    assert (run.model(0, "personal", "received") > 1).all()
    assert (run.model(5, "personal", "received") < -1).all()


def test_equal_models_are_all_but_one_never_chosen_and_the_run_says_so():
    run = Federation(IFCA(clusters=2).method(), quadratics(3))
    run.server.models[1] = run.server.models[0]
    run.round(a_round())
    assert not run.server.labels.any()
    assert "all clients chose one" in run.method.server.closing(run.server, run.roster, a_round())


def test_a_leavers_choice_says_nothing_about_the_members():
    """Of clients with optima 0, 0 and 1 and models at 0 and 1, the last chooses another one."""
    problem = Quadratics(torch.tensor([[0.0], [0.0], [1.0]]).double(), [[0], [1], [2]])
    run = Federation(IFCA(clusters=2).method(), problem)
    run.server = replace(run.server, models=torch.tensor([[0.0], [1.0]]).double())
    run.round(a_round())
    assert run.server.labels.squeeze(1).tolist() == [0, 0, 1]
    assert run.method.server.closing(run.server, run.roster, a_round()) is None
    run.only(0, 1)
    run.round(a_round(2))
    assert "all clients chose one" in run.method.server.closing(run.server, run.roster, a_round(2))


def test_the_least_loss_is_a_number_where_there_is_one():
    """An infinite loss is smaller than none."""
    rows = [[math.nan, 2.0, 1.0], [math.nan, math.inf, math.nan], [math.nan] * 3]
    assert argmin_loss(torch.tensor(rows)).tolist() == [2, 1, 0]


def test_a_model_without_a_loss_is_nobodys_choice():
    run = Federation(IFCA(clusters=2).method(), quadratics(3))
    run.server.models[0] = math.nan
    run.round(a_round())
    assert run.server.labels.squeeze(1).tolist() == [1, 1, 1]
    assert all(reply.uplink["model"].isfinite().all() for reply in run.replies)


@pytest.mark.parametrize("clusters", [0, 1001])
def test_a_number_of_clusters_out_of_bounds_is_refused(clusters):
    with pytest.raises(ValueError, match="clusters"):
        IFCA(clusters=clusters)


@pytest.mark.parametrize("clients", [1, 2])
def test_any_choice_is_let_in_however_few_the_clients_are(clients):
    """Of three models the last stands at the last client's optimum: its loss is the smallest
    there.
    """
    problem = quadratics(clients)
    run = Federation(IFCA(clusters=3).method(), problem)
    run.server.models[2] = problem.targets[problem.rows[-1]].mean(0)
    run.round(a_round())
    assert int(run.replies[-1].info["cluster"]) == 2
    assert judged(run).rejected == ()


@pytest.mark.parametrize("bits", list(product([False, True], repeat=2)))
def test_whatever_is_let_in_names_one_of_the_models(bits):
    run = Federation(IFCA(clusters=2).method(), quadratics(3))
    run.round(a_round())
    forged = replace(
        run.replies[0], uplink={**run.replies[0].uplink, "cluster": torch.tensor(bits)}
    )
    run.replies[0] = forged
    assert judged(run).rejected == ()
    uplink = stack(run.replies, lambda r: r.uplink)
    state = run.method.server.aggregate(run.server, uplink, run.ids, run.roster, a_round())
    label = int(state.labels[0])
    assert bits[label] or not any(bits)
    run.replies[0] = replace(forged, uplink={**forged.uplink, "cluster": torch.tensor([5])})
    assert "dtype" in judged(run).rejected[0].reason
