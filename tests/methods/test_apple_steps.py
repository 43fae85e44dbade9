"""APPLE's local step, an extension, against its definition, and the two methods that it includes as
limits.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.training_settings import Adam
from pomona.methods.mixtures.apple import APPLE
from pomona.methods.mixtures.apple_steps import Mixing, mixture, safe_rates
from pomona.methods.one_model.fedavg import FedAvg, FedAvgLocal
from pomona.methods.personal_regularisation.separate import Separate
from problems import Federation, Quadratics, a_round, quadratics

pytestmark = pytest.mark.long

OPTIMIZERS = [
    {"momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": Adam(name="adam")},
    {"optimizer": Adam(name="adamw", max_grad_norm=0.5), "weight_decay": 0.1},
]


def local(**settings):
    return APPLE(core_step="local", **settings).method()


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def mixing_of(C, P, origins, copies, pull=0.0, available=None):
    n, N = P.shape
    available = torch.ones(N, dtype=torch.bool) if available is None else available
    return Mixing(
        copies, origins, torch.eye(n, N).bool(), available, torch.full((N,), 1 / N).to(P), pull
    )


def with_cores(run, cores, rows=None):
    """The federation with these cores at clients and server, and these relationships."""
    run.server = replace(run.server, cores=cores.clone())
    for i in run.ids:
        row = {} if rows is None else {"dr": rows[i : i + 1].clone()}
        run.set_state(i, replace(run.state(i), core=cores[i : i + 1].clone(), **row))


def optima(problem):
    return torch.stack([problem.targets[rows].mean(0) for rows in problem.rows])


def test_a_step_by_hand():
    """Cores 1 and 3, origin .5, p_1 = (.5, .25): w = .5 + .5 * .5 + .25 * 2.5 = 1.375; sample a =
    2, so g = -.625.

    K = aa' with a = (.5, 2.5) has the eigenvalues 6.5 (of a) and 0, mean 3.25: e = .1 / (6.5 +
    3.25); p <- (.5, .25) + e * .625 a; w moves by .1 * .625 and with p.
    """
    run = Federation(local(), Quadratics(numbers([2.0], [0.0]), [[0], [1]]))
    with_cores(run, numbers([1.0], [3.0]), numbers([0.5, 0.25], [0.5, 0.5]))
    run.set_state(0, replace(run.state(0), origin=numbers([0.5])))
    run.round(a_round(lr=0.1))
    e = 0.1 / 9.75
    p = (0.5 + e * 0.3125, 0.25 + e * 1.5625)
    assert run.state(0).dr[0].tolist() == pytest.approx(p)
    assert run.state(0).core.item() == pytest.approx(1 + 0.0625)
    assert run.model(0, "personal", "trained").item() == pytest.approx(
        0.5 + 0.5 * p[0] + 2.5 * p[1] + 0.0625
    )


def test_relationships_follow_the_slope_of_the_objective():
    """At a rate of 1e-9 the change of p over the rate is the gradient of F_i(m_i(p)) + mu / 2 ||p -
    p0||^2; mu = 0.7 at r = 0.
    """
    problem, mu, rate = quadratics(4), 0.7, 1e-9
    run = Federation(local(dr_lr=rate, mu=mu, core_init="independent"), problem)
    cores, p0, o = run.server.cores.clone(), run.roster.shares, run.state(0).origin[0]
    rows = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with_cores(run, cores, rows)
    run.round(a_round())
    for i in range(4):

        def objective(p, i=i):
            w = o + p @ (cores - o)
            return float(problem.losses(w, i, "train").mean()) + mu / 2 * float(
                ((p - p0) ** 2).sum()
            )

        for j in range(4):
            step = torch.zeros(4, dtype=torch.float64)
            step[j] = 1e-6
            slope = (objective(rows[i] + step) - objective(rows[i] - step)) / 2e-6
            assert float(rows[i, j] - run.state(i).dr[0, j]) / rate == pytest.approx(
                slope, rel=1e-5, abs=1e-5
            )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_common_cores_without_learning_are_fedavg_and_its_local_models_to_the_bit(optimizer):
    """In round 1 to the bit; later the sums are ordered otherwise."""
    problem = quadratics(4, samples=3)
    runs = [
        Federation(m, problem) for m in (local(dr_lr=0), FedAvg().method(), FedAvgLocal().method())
    ]
    for number in (1, 2, 3):
        for run in runs:
            run.round(a_round(number, epochs=2, batch_size=2, **optimizer))
        apple, fedavg, its_local = runs
        for i in range(4):
            a, b = (apple.model(i, "personal", "trained"), its_local.model(i, "local", "trained"))
            assert torch.equal(a, b) if number == 1 else torch.allclose(a, b, atol=1e-12)
        assert_close(apple.roster.shares @ apple.server.cores, fedavg.server)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_hot_rows_without_learning_are_separate_training_to_the_bit(optimizer):
    problem = quadratics(3)
    apple, separate = Federation(local(dr_lr=0), problem), Federation(Separate().method(), problem)
    with_cores(apple, apple.server.cores, torch.eye(3, dtype=torch.float64))
    for number in (1, 2, 3):
        for run in (apple, separate):
            run.round(a_round(number, epochs=2, batch_size=1, **optimizer))
        for i in range(3):
            assert torch.equal(
                apple.model(i, "personal", "trained"), separate.model(i, "personal", "trained")
            )


def test_a_client_alone_is_plain_sgd():
    apple, plain = (Federation(m, quadratics(1)) for m in (local(dr_lr=0), Separate().method()))
    for number in (1, 2, 3):
        apple.round(a_round(number, momentum=0.5))
        plain.round(a_round(number, momentum=0.5))
    assert torch.equal(apple.model(0, "personal", "trained"), plain.model(0, "personal", "trained"))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_rounds_with_fixed_rows_follow_their_recursion(N, epochs, seed):
    """Full-batch steps on quadratics: after K of them w = W* + (1 - lr)^K (m - W*), so M <- M - (1
    - (1 - lr)^K) P (M - W*).
    """
    problem, lr = quadratics(N), 0.3
    run = Federation(local(dr_lr=0, core_init="independent"), problem)
    P = torch.randn(N, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with_cores(run, run.server.cores, P)
    o, best, a = run.state(0).origin, optima(problem), 1 - (1 - lr) ** epochs
    M = o + P @ (run.server.cores - o)
    for number in (1, 2):
        run.round(a_round(number, epochs=epochs, lr=lr))
        for i in range(N):
            assert_close(run.model(i, "personal", "trained"), M[i] - a * (M[i] - best[i]))
        M = M - a * P @ (M - best)
        assert_close(o + P @ (run.server.cores - o), M)


def test_each_clients_optimum_is_a_fixed_point():
    problem = quadratics(4)
    run = Federation(local(core_init="independent"), problem)
    P = run.roster.shares.repeat(4, 1) / 2 + torch.eye(4, dtype=torch.float64) / 2
    o = run.state(0).origin
    cores = o + torch.linalg.solve(P, optima(problem) - o)
    with_cores(run, cores, P)
    run.round(a_round(epochs=5, momentum=0.9))
    assert_close(run.server.cores, cores)
    for i in range(4):
        assert_close(run.state(i).dr[0], P[i])
        assert_close(run.model(i, "personal", "trained"), optima(problem)[i])


def test_clients_who_use_but_each_others_core_part_unless_they_learn():
    """P = [[0, 1], [1, 0]] has the eigenvalue -1: the mixtures' distance to the optima grows by 1 +
    a a round, a = 0.3.
    """
    problem = quadratics(2)
    swapped = torch.eye(2, dtype=torch.float64).flip(0)
    distances = {}
    for name, dr_lr, rounds in (("fixed", 0.0, 31), ("learned", None, 160)):
        run = Federation(local(dr_lr=dr_lr, core_init="independent"), problem)
        with_cores(run, run.server.cores, swapped)
        o, best = run.state(0).origin, optima(problem)
        distances[name] = []
        for number in range(1, rounds + 1):
            rows = torch.cat([run.state(i).dr for i in run.ids])
            distances[name].append(float((o + rows @ (run.server.cores - o) - best).norm()))
            run.round(a_round(number, lr=0.3))
    assert distances["fixed"][30] / distances["fixed"][29] == pytest.approx(1.3, rel=1e-3)
    assert distances["learned"][-1] < distances["learned"][0] / 10


@pytest.mark.parametrize("dr_lr", [1e-9, None])
def test_cores_grow_without_bound_where_the_relationships_hardly_learn(dr_lr):
    """Optima 1 and -1, rows (1/2, 1/2): the mixture stays 0, so that each of 100 rounds adds lr =
    0.1 to a core.
    """
    run = Federation(local(dr_lr=dr_lr), Quadratics(numbers([1.0], [-1.0]), [[0], [1]]))
    with_cores(run, numbers([0.0], [0.0]))
    for i in (0, 1):
        run.set_state(i, replace(run.state(i), origin=numbers([0.0])))
    for number in range(1, 101):
        run.round(a_round(number, total=100))
    model = run.model(0, "personal", "trained").item()
    if dr_lr:
        assert run.server.cores.squeeze(1).tolist() == pytest.approx([10, -10], rel=1e-4)
        assert model == pytest.approx(0.1, rel=1e-3)
    else:
        assert run.server.cores.abs().max() < 1
        assert model == pytest.approx(1)


class Curved(Quadratics):
    """Curvatures from 1 down to 0.01, one per direction."""

    def gradient(self, W, indices, *_, **__):
        h = torch.logspace(0, -2, W.shape[1], dtype=torch.float64)
        _, G = super().gradient(W, indices)
        return (h * G * G).sum(1) / 2, h * G


def test_flat_directions_are_learned_slower_than_alone():
    """A step at lr = 1 leaves 1 - h of the way: after 120 alone 0.99^120 of the flattest, and less
    of all others.
    """
    problem = quadratics(3, samples=1, d=6)
    curved, h = Curved(problem.targets, problem.rows), torch.logspace(0, -2, 6, dtype=torch.float64)
    loss = {}
    for name, method in (("local", local()), ("alone", Separate().method())):
        run = Federation(method, curved)
        initial = run.initial()
        for number in range(1, 121):
            run.round(a_round(number, lr=1.0, total=120))
        left = torch.stack([run.model(i, "personal", "trained") for i in run.ids]) - optima(problem)
        loss[name] = float((h * left**2).sum() / 2 / 3)
    expected = h * ((1 - h) ** 120 * (initial - optima(problem))) ** 2
    assert loss["alone"] == pytest.approx(float(expected.sum() / 2 / 3))
    assert loss["local"] / loss["alone"] == pytest.approx(2.7, abs=0.05)


@given(
    st.integers(1, 6),
    st.floats(1e-3, 1.0),
    st.floats(-6, 6),
    st.floats(0, 1e9),
    st.integers(0, 10**6),
)
def test_a_step_never_raises_the_loss_whatever_the_scale_of_cores_and_the_rate(
    N, lr, scale, dr_lr, seed
):
    """F_i has curvature 1, and lr is at most 1."""
    problem = quadratics(N)
    run = Federation(local(dr_lr=dr_lr, core_init="independent"), problem)
    draw = torch.Generator().manual_seed(seed)
    cores = torch.randn(N, 5, generator=draw, dtype=torch.float64) * 10**scale
    rows = torch.randn(N, N, generator=draw, dtype=torch.float64)
    with_cores(run, cores, rows)
    o = run.state(0).origin
    run.round(a_round(lr=lr))
    for i in range(N):
        loss_before = float(problem.losses((o + rows[i] @ (cores - o))[0], i, "train").mean())
        loss_after = float(problem.losses(run.model(i, "personal", "trained"), i, "train").mean())
        assert loss_after <= loss_before * (1 + 1e-9)


@given(st.integers(1, 5), st.integers(1, 6), st.floats(0, 10), st.integers(0, 10**6))
def test_rates_bound_what_the_relationships_move(n, d, pull, seed):
    """Against another library's inverse; A' R A of the members' progress A is at most lr, R at most
    dr_lr.
    """
    draw = torch.Generator().manual_seed(seed)
    cores, P = (torch.randn(n, k, generator=draw, dtype=torch.float64) for k in (d, n))
    origins = torch.randn(n, d, generator=draw, dtype=torch.float64)
    available = torch.rand(n, generator=draw) > 0.3
    available[0] = True
    copies = torch.randn(n, n, d, generator=draw, dtype=torch.float64)
    mixing = mixing_of(cores, P, origins, copies, pull, available)
    free, capped = (
        safe_rates(cores, mixing, a_round(lr=0.1, decay=0.5), dr_lr) for dr_lr in (None, 0.02)
    )
    m = int(available.sum())
    for k in range(n):
        A = (torch.where(torch.eye(n)[k].bool().unsqueeze(1), cores[k], copies[k]) - origins[k])[
            available
        ].numpy()
        K = A @ A.T
        R = np.linalg.inv((K + np.trace(K) / m * np.eye(m)) / 0.1 + pull * np.eye(m))
        assert_close(free[k][available][:, available], torch.from_numpy(R))
        assert not free[k][~available].any()
        assert not free[k][:, ~available].any()
        assert np.linalg.norm(A.T @ free[k][available][:, available].numpy() @ A, 2) <= 0.1
        assert np.linalg.norm(capped[k].numpy(), 2) <= 0.02 * 0.5


def test_nothing_is_learned_of_relationships_before_there_is_progress():
    run = Federation(local(mu=3.0), quadratics(3))
    run.round(a_round(epochs=3))
    assert all(torch.equal(run.state(i).dr[0], run.roster.shares) for i in range(3))
    run.round(a_round(2))
    assert all(not torch.equal(run.state(i).dr[0], run.roster.shares) for i in range(3))


def test_own_copies_and_a_shared_bank_mix_alike():
    draw = torch.Generator().manual_seed(0)
    C, bank, P = (
        torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((2, 6), (4, 6), (2, 4))
    )
    o = torch.randn(2, 6, generator=draw, dtype=torch.float64)
    of_bank, of_copies = mixing_of(C, P, o, bank), mixing_of(C, P, o, bank.repeat(2, 1, 1))
    cores = torch.stack([torch.cat([C[:1], bank[1:]]), torch.cat([bank[:1], C[1:], bank[2:]])])
    assert_close(
        mixture(C, P, of_bank), o + torch.bmm(P.unsqueeze(1), cores - o.unsqueeze(1)).squeeze(1)
    )
    assert_close(mixture(C, P, of_bank), mixture(C, P, of_copies))
    assert_close(safe_rates(C, of_bank, a_round(), None), safe_rates(C, of_copies, a_round(), None))


def test_steps_under_a_budget_of_all_others_are_those_without():
    free, budgeted = (Federation(local(budget=b), quadratics(4)) for b in (None, 3))
    for number in (1, 2, 3):
        free.round(a_round(number, epochs=2))
        budgeted.round(a_round(number, epochs=2))
    assert torch.equal(free.server.cores, budgeted.server.cores)


def test_what_stays_with_a_client_without_the_extension_has_no_origin():
    run = Federation(APPLE().method(), quadratics(2))
    assert run.state(0).origin.shape == (1, 0)
