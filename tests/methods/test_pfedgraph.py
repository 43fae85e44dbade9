"""pFedGraph: the graph against an optimizer and its optimality conditions, the step against
autograd, both limits.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import minimize
from test_partners import GROUPS, two_groups
from torch.testing import assert_close

from pomona.methods.mixtures.pfedgraph import PFedGraph, cosine_gradient
from pomona.methods.one_model.fedavg import FedAvgLocal
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.row_algebra import onto_simplex
from problems import Federation, a_round, quadratics, trained, uneven


@given(
    arrays.arrays(
        "float64", st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-50, 50)
    ),
    st.floats(1e-4, 2),
)
def test_the_projection_meets_the_conditions_of_the_nearest_point(V, total):
    """a >= 0, a sum, and V - a is one number t wherever a > 0, and at most t elsewhere."""
    V = torch.from_numpy(V)
    a = onto_simplex(V, total)
    assert (a >= 0).all()
    assert_close(a.sum(1), torch.full((len(V),), total, dtype=torch.float64))
    t = (V - a).masked_fill(a == 0, -torch.inf).max(1, keepdim=True).values
    assert ((V - a) <= t + 1e-9).all()
    assert ((V - a - t).abs()[a > 0] < 1e-9).all()


def test_a_graph_is_the_minimum_of_the_papers_programme():
    """Against scipy on alpha |a - p|^2 - <a, s> over the simplex, for the changes of a trained
    federation.
    """
    alpha, problem = 0.3, uneven(5, 3, 4, 2)
    run = trained(PFedGraph(alpha=alpha), problem, 2)
    change = run.server.models - run.initial()
    s = torch.nn.functional.cosine_similarity(change.unsqueeze(1), change.unsqueeze(0), dim=2)
    p = torch.tensor([5, 3, 4, 2], dtype=torch.float64) / 14
    downlink = run.downlink(a_round(3))
    for i in range(4):
        optimum = minimize(
            lambda a, i=i: alpha * ((a - p.numpy()) ** 2).sum() - a @ s[i].numpy(),
            p.numpy(),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-14},
        )
        assert_close(downlink["graph"].bank[i], torch.from_numpy(optimum.x), atol=1e-6, rtol=0)
        assert_close(downlink["model"].bank[i], downlink["graph"].bank[i] @ run.server.models)


def test_the_pull_is_the_gradient_of_the_similarities():
    """-mu sum_j a_j cos(w, w_j) by autograd."""
    W = torch.randn(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    a, w = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64), W[3].clone().requires_grad_()
    (a @ torch.nn.functional.cosine_similarity(w.unsqueeze(0), W[:3])).backward()
    u = a @ (W[:3] / W[:3].norm(dim=1, keepdim=True))
    assert_close(cosine_gradient(W[3:], u.unsqueeze(0))[0], w.grad)
    assert torch.equal(cosine_gradient(torch.zeros(1, 6), torch.zeros(1, 6)), torch.zeros(1, 6))


def test_the_neighbours_directions_pull_local_training():
    """A second round by hand: theta_i - lr (g_i - mu cosine_gradient)."""
    problem, mu = quadratics(3, samples=3), 0.7
    run = trained(PFedGraph(mu=mu), problem, 1, lr=0.1)
    downlink = run.downlink(a_round(2))
    run.round(a_round(2))
    for i in range(3):
        theta, u = (downlink[k].bank[i] for k in ("model", "direction"))
        g = (
            theta
            - problem.targets[problem.rows[i]].mean(0)
            - mu * cosine_gradient(theta.unsqueeze(0), u.unsqueeze(0))[0]
        )
        assert_close(run.model(i, "personal", "trained"), theta - 0.1 * g)


def test_a_heavy_pull_to_the_shares_is_fedavg_and_none_is_separate():
    problem = uneven(5, 3, 2)
    heavy = trained(PFedGraph(alpha=1e9, mu=0.0), problem, 4)
    light = trained(PFedGraph(alpha=1e-9, mu=0.0), problem, 4)
    local, plain = (trained(FedAvgLocal(), problem, 4), trained(Separate(), problem, 4))
    for i in range(3):
        ours = heavy.model(i, "personal", "trained")
        assert_close(ours, local.model(i, "local", "trained"), atol=1e-7, rtol=0)
        assert_close(light.model(i, "personal", "trained"), plain.model(i, "personal", "trained"))


def test_the_first_round_is_fedavgs_to_the_bit():
    problem = uneven(5, 3, 2)
    a, b = (trained(PFedGraph(mu=0.5), problem, 1), trained(FedAvgLocal(), problem, 1))
    for i in range(3):
        assert torch.equal(a.model(i, "personal", "trained"), b.model(i, "local", "trained"))


@pytest.mark.parametrize("similarity", ["changes", "models"])
def test_neighbours_are_those_of_the_own_group(similarity):
    run = trained(PFedGraph(similarity=similarity), two_groups(), epochs=2, batch_size=4, lr=0.1)
    graph = torch.stack([r.info["graph"] for r in run.replies]).numpy()
    same_group = GROUPS[:, None] == GROUPS
    assert graph[~same_group].max() < 0.05
    assert graph[same_group].min() > 0.2


def test_only_who_has_sent_is_in_the_graph():
    run = Federation(PFedGraph().method(), quadratics(4, samples=3))
    run.round(a_round(1), ids=(0, 2))
    run.round(a_round(2))
    graph = torch.stack([r.info["graph"] for r in run.replies])
    assert not graph[:, [1, 3]].any()
    assert_close(graph.sum(1), torch.ones(4, dtype=torch.float64))
