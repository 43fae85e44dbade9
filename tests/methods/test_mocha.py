"""MOCHA's surrogate: separate training with coupled heads."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.personal_regularisation.mocha import MOCHA, coupling
from pomona.methods.personal_regularisation.separate import Separate
from problems import Federation, a_round, quadratics, trained

# The last number of a quadratic's model is its head.


def omega(variant, N):
    """M of the docstring, written out."""
    ones = torch.ones(N, N, dtype=torch.float64)
    eye = torch.eye(N, dtype=torch.float64)
    return eye - ones / N if variant == "centring" else eye + (1 - 1 / N) ** 2 * ones


def penalty(H, variant):
    """tr(H M H^T) with the heads as columns; H (N, h) as rows."""
    return float(torch.trace(H.T @ omega(variant, len(H)) @ H))


@pytest.mark.parametrize("name", ["centring", "published"])
def test_the_pull_is_the_finite_difference_of_the_penalty(name):
    """One step of lr 1 against separate training's: the difference is the gradient of penalty tr(H
    M H^T) at the start.
    """
    problem, N, d = quadratics(3, d=4), 3, 4
    runs = [Federation(m.method(), problem) for m in (MOCHA(penalty=0.7, omega=name), Separate())]
    models = torch.randn(N, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for run in runs:
        for i in range(N):
            run.set_state(i, models[i : i + 1].clone())
    runs[0].server = models[:, -1:].clone()
    for run in runs:
        run.round(a_round(lr=1.0))
    for i in range(N):
        gradient = runs[1].state(i)[0] - runs[0].state(i)[0]
        # the other layers are uncoupled
        assert torch.equal(gradient[:-1], torch.zeros(d - 1, dtype=torch.float64))
        raised, lowered = models[:, -1:].clone(), models[:, -1:].clone()
        raised[i] += 1e-6
        lowered[i] -= 1e-6
        difference = 0.7 * (penalty(raised, name) - penalty(lowered, name)) / 2e-6
        assert float(gradient[-1]) == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize("variant", ["centring", "published"])
@pytest.mark.parametrize("N", [1, 2, 5])
def test_the_coupling_is_the_matrix(variant, N):
    M, (own_weight, other_weight) = omega(variant, N), coupling(MOCHA(omega=variant), N)
    assert_close(M.diagonal(), torch.full((N,), own_weight, dtype=torch.float64))
    off_diagonal = M[~torch.eye(N, dtype=torch.bool)]
    assert_close(off_diagonal, torch.full_like(off_diagonal, other_weight))


def test_it_converges_to_the_known_optimum():
    """Heads: (h_i - a_i) + 2 p (h_i - mean h) = 0 sums to mean h = mean a, so h_i = (a_i + 2 p mean
    a) / (1 + 2 p).
    """
    problem, p = quadratics(4, samples=1), 0.6
    run = trained(MOCHA(penalty=p), problem, 40, epochs=20, lr=0.2)
    a = problem.targets
    heads = (a[:, -1:] + 2 * p * a[:, -1:].mean(0)) / (1 + 2 * p)
    assert_close(run.server, heads, atol=1e-8, rtol=0)
    for i in range(4):
        assert_close(run.model(i, "personal", "trained")[:-1], a[i, :-1], atol=1e-8, rtol=0)
        assert_close(
            run.replies[i].info["head_distance"],
            (heads[i] - heads.mean(0)).norm(),
            atol=1e-8,
            rtol=0,
        )


def test_the_published_omega_pulls_the_sum_to_zero():
    """(h_i - a_i) + 2 p (h_i + c S) = 0 with S = sum h: S (1 + 2 p + 2 p c N) = sum a."""
    problem, p, N = quadratics(3, samples=1), 0.4, 3
    run = trained(MOCHA(penalty=p, omega="published"), problem, 200, epochs=5, lr=0.1)
    c = (1 - 1 / N) ** 2
    assert_close(
        run.server.sum(0),
        problem.targets[:, -1:].sum(0) / (1 + 2 * p + 2 * p * c * N),
        atol=1e-8,
        rtol=0,
    )


def test_without_a_penalty_it_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=4)
    mocha = Federation(MOCHA(penalty=0.0).method(), problem)
    separate = Federation(Separate().method(), problem)
    coupled = Federation(MOCHA().method(), problem)
    for number in (1, 2):
        for run in (mocha, separate, coupled):
            run.round(a_round(number, epochs=2, batch_size=1, momentum=0.9, lr=0.05))
    for i in range(3):
        assert torch.equal(mocha.state(i), separate.state(i))
        assert not torch.allclose(mocha.state(i), coupled.state(i))


def test_equal_heads_cost_nothing_when_centred():
    """The first step from the common model, and any step of a lone client, is separate
    training's.
    """
    for N in (1, 3):
        problem = quadratics(N)
        mocha = Federation(MOCHA(penalty=2.0).method(), problem)
        separate = Federation(Separate().method(), problem)
        for run in (mocha, separate):
            run.round(a_round(lr=0.1, epochs=3 if N == 1 else 1))
        for i in range(N):
            assert_close(mocha.state(i), separate.state(i))


def test_only_heads_travel():
    run = Federation(MOCHA().method(), quadratics(4, d=6))
    downlink = run.downlink(a_round(), (1, 3))
    assert downlink["heads"].bank.shape == (4, 1)
    assert downlink["heads"].index.tolist() == [[0, 2, 3], [0, 1, 2]]
    run.round(a_round())
    assert {name for reply in run.replies for name in reply.uplink} == {"head"}
    assert all(reply.uplink["head"].shape == (1,) for reply in run.replies)


def test_absent_clients_keep_their_model_and_their_last_head():
    run = Federation(MOCHA().method(), quadratics(3))
    run.round(a_round(1))
    head, model = run.server[1].clone(), run.state(1).clone()
    run.round(a_round(2), ids=(0, 2))
    assert torch.equal(run.server[1], head)
    assert torch.equal(run.state(1), model)
