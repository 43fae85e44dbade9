"""PGFed: two rounds by hand, the approximation, reductions, and the form that keeps coefficients
private.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from pomona.core.round import Roster
from pomona.methods.mixtures.pgfed import PGFed, PGFedMo
from pomona.methods.mixtures.pgfed_private import choose
from pomona.methods.mixtures.pgfed_risks import risk
from pomona.methods.one_model.fedavg import FedAvgLocal
from pomona.objective.training import LocalTraining
from problems import Federation, a_round, quadratics, uneven

PASSES = {"epochs": 3, "batch_size": 1, "momentum": 0.9, "lr": 0.03}
VARIANTS = [
    PGFed(),
    PGFedMo(),
    PGFed(mixing="client"),
    PGFedMo(mixing="client"),
    PGFedMo(mixing="client", budget=1),
]


def rounds(settings, count, problem, cohorts=None, **passes):
    """A federation after some rounds."""
    run = Federation(settings.method(), problem)
    for number in range(1, count + 1):
        run.round(a_round(number, **passes), ids=cohorts and cohorts[(number - 1) % len(cohorts)])
    return run


def centre(problem, i):
    """Client i's optimum; F_i(w) = |w - centre|^2 / 2 + the spread of its samples."""
    return problem.targets[problem.rows[i]].mean(0)


def value(problem, i, w):
    """F_i(w) on all samples of client i."""
    return ((w - problem.targets[problem.rows[i]]) ** 2).sum(1).mean() / 2


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_without_mu_it_is_fedavg_local_to_the_bit(settings):
    problem, cohorts = uneven(5, 4, 2), [(0, 1, 2), (0, 2), (1, 2)]
    a = rounds(settings.model_copy(update={"mu": 0.0}), 5, problem, cohorts, **PASSES)
    b = rounds(FedAvgLocal(), 5, problem, cohorts, **PASSES)
    assert torch.equal(a.server.model, b.server)
    for i in cohorts[4 % 3]:
        assert torch.equal(a.model(i, "personal", "trained"), b.model(i, "local", "trained"))


@pytest.mark.parametrize("fewest", [1, 2])  # with 2, batches of 2 leave none of 7 or 3 over
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("sizes", [(1,), (7, 3, 1), (4, 4)])
def test_a_risk_and_its_gradient_are_over_all_samples_whatever_the_batches(size, sizes, fewest):
    problem = uneven(*sizes)
    problem.least_batch = fewest
    run = Federation(PGFed().method(), problem)
    ids = tuple(sorted(range(len(sizes)), key=lambda i: -sizes[i]))
    W = torch.randn(len(ids), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    round_ = a_round(batch_size=size)
    G, o = risk(LocalTraining(problem, ids, run.roster, round_), W, round_)
    for w, g, offset, i in zip(W, G, o, ids, strict=True):
        assert_close(g, w - centre(problem, i))
        assert_close(offset, (value(problem, i, w) - g @ w).unsqueeze(0))
    idle, _ = risk(LocalTraining(problem, ids, run.roster, round_, trains=False), W, round_)
    assert not idle.any()


def test_the_approximation_misses_half_the_squared_distance_on_quadratics():
    """The Hessian of F_j is the identity: F_j(w) = o_j + <g_j, w> + |w - w_j|^2 / 2, exactly."""
    problem = quadratics(3, samples=4)
    run = rounds(PGFed(), 1, problem, lr=0.2)
    w = torch.full((5,), 0.7, dtype=torch.float64)
    for reply in run.replies:
        model, uplink = run.model(reply.client, "personal", "trained"), reply.uplink
        estimate = uplink["offset"] + uplink["gradient"] @ w + ((w - model) ** 2).sum() / 2
        assert_close(estimate, value(problem, reply.client, w).unsqueeze(0))


def two_rounds(problem, exact, mu=0.3, eta=0.02, lr=0.1):
    """The first two rounds of three clients by the docstring's equations, one full-batch step a
    round.
    """
    w = Federation(PGFed().method(), problem).initial()
    first = [w - lr * (w - centre(problem, i)) for i in range(3)]
    g = torch.stack([model - centre(problem, i) for i, model in enumerate(first)])
    o = torch.stack([value(problem, i, model) - g[i] @ model for i, model in enumerate(first)])
    w, a = sum(first) / 3, torch.full((3, 3), 1 / 3, dtype=torch.float64)
    c = mu * a @ g
    models = [w - lr * (w - centre(problem, i) + c[i]) for i in range(3)]
    slope = mu * (o + (g @ w if exact else (w @ g.mean(0)).expand(3)))
    return models, (a - eta * slope).clamp_min(0)


@pytest.mark.parametrize("mixing", ["server", "client"])
def test_two_rounds_by_hand(mixing):
    problem = quadratics(3, samples=4)
    run = rounds(PGFed(mu=0.3, risk_lr=0.02, mixing=mixing), 2, problem)
    models, a = two_rounds(problem, exact=mixing == "client")
    assert 0 < a.min() < a.max() < 1
    for i, w in enumerate(models):
        assert_close(run.model(i, "personal", "trained"), w)
        assert_close(run.replies[i].info["risk_weights"], a[i])
    assert_close(run.server.model, sum(models) / 3)


def test_the_private_step_is_the_gradient_of_the_approximated_objective():
    """Autograd on F_i(w) + mu sum_j a_j (o_j + <g_j, w>) over (w, a), one plain step of each,
    projected onto a >= 0.
    """
    problem, mu, eta, lr = quadratics(3, samples=4), 0.5, 0.05, 0.1
    run = rounds(PGFed(mu=mu, risk_lr=eta, mixing="client"), 2, problem, lr=lr)
    w = run.server.model.clone().requires_grad_()
    a = run.state(1).weights[0].clone().requires_grad_()
    G, o = run.server.gradients, run.server.offsets.squeeze(1)
    objective = ((w - problem.targets[problem.rows[1]]) ** 2).sum(1).mean() / 2 + mu * (
        a * (o + G @ w)
    ).sum()
    objective.backward()
    run.round(a_round(3, lr=lr))
    assert_close(run.model(1, "personal", "trained"), (w - lr * w.grad).detach())
    assert_close(run.state(1).weights[0], (a - eta * a.grad).clamp_min(0).detach())


@pytest.mark.parametrize("settings", [PGFed, PGFedMo])
def test_who_mixes_does_not_matter_while_coefficients_rest(settings):
    """At risk_lr = 0 the server's mixture and the client's are the same sum."""
    problem = uneven(5, 4, 2)
    by_server, by_client = (
        rounds(settings(risk_lr=0.0, mixing=m), 4, problem, **PASSES) for m in ("server", "client")
    )
    assert_close(by_server.server.model, by_client.server.model)
    assert_close(by_server.server.gradients, by_client.server.gradients)


def test_one_vector_for_all_gradients_makes_all_clients_rank_the_others_alike():
    """a_ij - a_ik is the same for every client i with gbar; with the exact products it is not."""
    spread = []
    for mixing in ("server", "client"):
        run = rounds(PGFed(risk_lr=0.002, mixing=mixing), 4, quadratics(4, samples=3), **PASSES)
        A = torch.stack([r.info["risk_weights"] for r in run.replies])
        assert A.min() > 0
        spread.append((A - A[:, :1]).std(0).max())
    assert spread[0] < 1e-12
    assert spread[1] > 1e-4


def test_pgfedmo_without_beta_is_pgfed_to_the_bit():
    problem = quadratics(3, samples=4)
    for mixing in ("server", "client"):
        pgfed = rounds(PGFed(mixing=mixing), 4, problem, **PASSES)
        pgfedmo = rounds(PGFedMo(mixing=mixing, beta=0.0), 4, problem, **PASSES)
        assert torch.equal(pgfed.server.model, pgfedmo.server.model)


def test_momentum_keeps_a_share_of_the_mixture_before():
    """Third round: c = (1 - beta) mu sum_j a_ij g_j of now + beta of the second round's, which was
    its first.
    """
    beta, mu, problem = 0.25, 0.4, quadratics(2, samples=3)
    run = rounds(PGFedMo(beta=beta, mu=mu, risk_lr=0.0), 1, problem)
    second = mu * run.server.gradients.mean(0)
    run.round(a_round(2))
    c = (1 - beta) * mu * run.server.gradients.mean(0) + beta * second
    w = run.server.model
    run.round(a_round(3))
    assert_close(run.model(0, "personal", "trained"), w - 0.1 * (w - centre(problem, 0) + c))


@pytest.mark.long
def test_under_full_coupling_everybody_descends_on_the_sum_of_all_risks():
    """a_ij fixed at 1 / N and mu = N: the fixed point solves grad F_i(w_i) + sum_j grad F_j(w_j) =
    0 for the mean model.

    One full-batch step a round from the mean w: mean grad (1 + mu) = 0, so w settles at the mean of
    the optima.
    """
    problem = quadratics(4, samples=3)
    run = rounds(PGFed(mu=2.0, risk_lr=0.0), 300, problem, lr=0.05)
    assert_close(run.server.model, problem.targets.mean(0), atol=1e-8, rtol=0)


def test_only_the_cohort_before_counts_and_all_who_ever_sent_are_offered():
    problem = quadratics(4, samples=3)
    cohorts = [(0, 1), (2, 3), (0, 3)]
    paper, by_client = (
        rounds(PGFed(mixing=m, risk_lr=0.0), 3, problem, cohorts) for m in ("server", "client")
    )
    weights = {r.client: r.info["risk_weights"] for r in paper.replies}
    assert_close(weights[0], torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=torch.float64))
    weights = {r.client: r.info["risk_weights"] for r in by_client.replies}
    assert (weights[0] > 0).all()
    assert weights[3][:3].gt(0).all()


@pytest.mark.parametrize("budget", [1, 2])
def test_a_budget_brings_every_gradient_in_turn(budget):
    problem = quadratics(4, samples=3)
    run = Federation(PGFed(mixing="client", budget=budget).method(), problem)
    for number in range(1, 8):
        downlink = run.downlink(a_round(number))
        filled = [
            [j for j in row if j != i] for i, row in enumerate(downlink["gradients"].index.tolist())
        ]
        assert all(len(set(row)) == len(row) == (0 if number == 1 else budget) for row in filled)
        run.round(a_round(number))
        counts = [(run.state(i).weights[0] >= 0).sum() for i in range(4)]
        assert all(m == min(4, 1 + budget * (number - 1)) if number > 1 else m == 0 for m in counts)


def test_the_choice_prefers_large_coefficients_once_all_are_met():
    """Probabilities b^a_ij with b = max(1.5, r M / N): at r = 400, M = 1, N = 4 b is 100."""
    a, offered = torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.ones(4, dtype=torch.bool)
    settings = PGFed(mixing="client", budget=1)
    choices = [
        int(choose(settings, a, offered, 0, Roster((1,) * 4), seed, 401)[0]) for seed in range(300)
    ]
    assert choices.count(1) / 300 == pytest.approx(100 / 102, abs=0.03)
    assert 0 not in choices


def test_nobody_offered_is_an_empty_request():
    offered, roster = torch.zeros(3, dtype=torch.bool), Roster((1,) * 3)
    request = choose(PGFed(mixing="client"), torch.full((3,), -1.0), offered, 1, roster, 0, 1)
    assert request.tolist() == [1, 1]


@pytest.mark.parametrize("mixing", ["server", "client"])
def test_a_leaver_is_in_no_sum_and_its_successor_is_met_anew(mixing):
    run = rounds(PGFed(mixing=mixing, risk_lr=0.05, mu=1.0), 3, quadratics(3, samples=3))
    run.only(0, 1)
    run.round(a_round(4))
    assert all(r.info["risk_weights"][2] == 0 for r in run.replies)
    run.only(0, 1, 2)
    run.round(a_round(5))
    w, G, o = run.server.model, run.server.gradients, run.server.offsets.squeeze(1)
    slope = o[2] + w @ (G.mean(0) if mixing == "server" else G[2])
    run.round(a_round(6))
    assert_close(run.replies[0].info["risk_weights"][2], (1 / 3 - 0.05 * slope).clamp_min(0))
    assert run.replies[0].info["risk_weights"][2] > 0


@pytest.mark.parametrize("settings", VARIANTS[:4], ids=str)
@pytest.mark.parametrize("largest", [0.5, 0.4])
def test_a_false_offset_gives_a_member_no_more_than_the_agreed_share_of_anothers_objective(
    settings, largest
):
    """An offset of -1e30 raises every coefficient of client 0's risk by eta_2 mu 1e30."""
    run = Federation(settings.method(), quadratics(3, samples=4))
    run.roster = replace(run.roster, largest=largest)
    run.round(a_round(1))
    honest = run.server.gradients
    run.server.offsets[0] = -1e30
    run.round(a_round(2))
    run.server.offsets[0] = -1e30
    model = run.server.model
    run.round(a_round(3, lr=0.1))
    used = run.downlink(a_round(4), (1, 2)).get("weights")
    a = (
        used.bank[used.index].squeeze(1)
        if used
        else torch.cat([run.state(i).weights for i in (1, 2)])
    )
    assert_close(a[:, 0], torch.full((2,), largest, dtype=torch.float64))
    for i in (1, 2):
        movement = (run.model(i, "personal", "trained") - model).norm()
        assert movement < 10 * (honest.norm() + model.norm())


def test_a_client_whose_risk_others_weigh_by_more_than_the_largest_share_is_named():
    """Coefficients that clients return, of three clients; -1 is one that never met the risk.

    All honest: no name.
    """
    server, roster = PGFed().method().server, Roster((4, 4, 4), largest=0.5)
    weights = torch.tensor([[0.2, 7.0, -1.0], [0.5, 0.1, 0.5], [0.3, 90.0, 0.5]])
    notes = server.capped_clients(None, {"weights": weights}, (0, 1, 2), roster, a_round(2))
    assert notes == {1: "others weigh its risk by up to 90; it counts by 0.5 at most"}
    assert (
        server.capped_clients(
            None, {"weights": weights.clamp_max(0.5)}, (0, 1, 2), roster, a_round(2)
        )
        == {}
    )
    assert (
        server.capped_clients(
            None, {"weights": weights}, (0, 1, 2), replace(roster, largest=1.0), a_round(2)
        )
        == {}
    )


def test_without_a_limit_a_coefficient_is_the_papers():
    run = Federation(PGFed().method(), quadratics(3, samples=4))
    run.round(a_round(1))
    run.server.offsets[0] = -1e30
    run.round(a_round(2))
    assert run.server.weights[1, 0] > 1e20
