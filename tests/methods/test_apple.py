"""APPLE against its equations."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.round import Roster
from pomona.methods.mixtures.apple import APPLE, choose, schedule
from pomona.methods.mixtures.request_bank import by_relations, limit, probabilities
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.objective.objective import Mixture
from problems import Federation, a_round, quadratics, trained

pytestmark = pytest.mark.long


def loss(problem, w, client):
    """F_i(w) over all of a client's samples."""
    return float(problem.losses(w, client, "train").mean())


def test_dr_gradient_is_the_finite_difference_of_the_objective():
    """With lr_dr = 1 and one full-batch step, p - p_new is the gradient of eq. 7 with respect to p;
    here mu = 0.7 at r = 0.
    """
    problem, mu = quadratics(4), 0.7
    run = Federation(APPLE(dr_lr=1.0, mu=mu, core_init="independent").method(), problem)
    cores, p0 = run.server.cores.clone(), run.roster.shares
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(4, 4, generator=rng, dtype=torch.float64)  # negative weights too
    for i in range(4):
        run.set_state(i, replace(run.state(i), dr=rows[i : i + 1].clone()))
    run.round(a_round())
    for i in range(4):
        gradient = rows[i] - run.state(i).dr[0]

        def objective(p, i=i):
            return loss(problem, p @ cores, i) + mu / 2 * float(((p - p0) ** 2).sum())

        for j in range(4):
            step = torch.zeros(4, dtype=torch.float64)
            step[j] = 1e-6
            difference = (objective(rows[i] + step) - objective(rows[i] - step)) / 2e-6
            assert gradient[j] == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_common_cores_bear_a_rate_of_the_relationships_that_is_n_times_smaller():
    """Curvature 1, cores at rest: along the cores an error shrinks by |1 - N dr_lr ||c||^2| a step,
    at right angles N is 1.
    """
    from problems import Quadratics

    dr_lr = 1.5  # of unit cores: |1 - 1.5| = 0.5; of four alike |1 - 6| = 5
    problem = Quadratics(torch.full((4, 4), 2.0, dtype=torch.float64), [[i] for i in range(4)])
    for cores, factor in ((torch.eye(4), 0.5), (torch.eye(4)[:1].expand(4, 4), 5.0)):
        run = Federation(APPLE(dr_lr=dr_lr).method(), problem)
        run.server = replace(run.server, cores=cores.double().contiguous())
        for i in range(4):
            run.set_state(i, replace(run.state(i), core=cores[i : i + 1].double().contiguous()))
        error_before = run.state(0).dr[0] @ cores.double() - 2
        run.round(a_round(lr=1e-12))
        error_after = run.state(0).dr[0] @ cores.double() - 2
        assert abs(error_after[0] / error_before[0]) == pytest.approx(factor)


def test_core_and_dr_step_by_hand():
    """Two clients, one number each.

    Cores 1 and 3, p_1 = (.5, .25): w = .5 * 1 + .25 * 3 = 1.25; sample a = 2, so g = -.75.

    c <- 1 - .1 * .5 * -.75 = 1.0375;  p <- (.5 - .01 * -.75 * 1, .25 - .01 * -.75 * 3) = (.5075,
    .2725).
    """
    from problems import Quadratics

    problem = Quadratics(torch.tensor([[2.0], [0.0]], dtype=torch.float64), [[0], [1]])
    run = Federation(APPLE(dr_lr=0.01).method(), problem)
    run.server = replace(run.server, cores=torch.tensor([[1.0], [3.0]], dtype=torch.float64))
    dr = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    run.set_state(0, replace(run.state(0), core=torch.tensor([[1.0]], dtype=torch.float64), dr=dr))
    run.round(a_round(lr=0.1))

    assert_close(run.state(0).core, torch.tensor([[1.0375]], dtype=torch.float64))
    assert_close(run.state(0).dr, torch.tensor([[0.5075, 0.2725]], dtype=torch.float64))


def test_others_cores_stay_frozen_and_the_own_one_is_current():
    """Two steps in a round: the second mixes the client's core after the first step, and the
    others' as downloaded.
    """
    problem = quadratics(3, samples=1)
    run = Federation(APPLE(dr_lr=0.0, core_init="independent").method(), problem)
    cores, p = run.server.cores.clone(), run.roster.shares
    run.round(a_round(epochs=2, lr=0.3))
    for i in range(3):
        c = cores[i].clone()
        for _ in range(2):
            w = sum(p[j] * (c if j == i else cores[j]) for j in range(3))
            c = c - 0.3 * p[i] * (w - problem.targets[i])
        assert_close(run.state(i).core[0], c)


def test_one_step_a_round_equals_fedavg():
    """Equal sizes, p frozen at p0 = 1/N, one full-batch step: with lr N times FedAvg's, sum_j p0_j
    c_j is FedAvg's model.
    """
    problem, N = quadratics(4), 4
    apple = Federation(APPLE(dr_lr=0.0).method(), problem)
    fedavg = Federation(FedAvg().method(), problem)
    for number in range(1, 6):
        apple.round(a_round(number, lr=0.05 * N))
        fedavg.round(a_round(number, lr=0.05))
        assert_close(apple.roster.shares @ apple.server.cores, fedavg.server)


def test_one_hot_dr_without_learning_is_separate_training_to_the_bit():
    problem = quadratics(3)
    apple = Federation(APPLE(dr_lr=0.0).method(), problem)
    separate = Federation(Separate().method(), problem)
    for i in range(3):
        apple.set_state(i, replace(apple.state(i), dr=torch.eye(3, dtype=torch.float64)[i : i + 1]))
    for number in range(1, 4):
        round_ = a_round(number, epochs=2, batch_size=1, momentum=0.9)
        apple.round(round_)
        separate.round(round_)
        for i in range(3):
            assert torch.equal(
                apple.model(i, "personal", "trained"), separate.model(i, "personal", "trained")
            )


def test_one_client_alone_is_plain_sgd():
    problem = quadratics(1)
    apple = trained(APPLE(dr_lr=0.0), problem, 2, lr=0.1)
    local = trained(Separate(), problem, 2, lr=0.1)
    assert torch.equal(apple.model(0, "personal", "trained"), local.model(0, "personal", "trained"))


def test_dr_stays_at_the_prox_centre_without_a_learning_rate():
    run = Federation(APPLE(dr_lr=0.0, mu=5.0).method(), quadratics(3))
    run.round(a_round(epochs=3))
    assert torch.equal(run.state(1).dr[0], run.roster.shares)


def test_the_proximal_term_pulls_towards_the_sample_shares():
    free, pulled = (
        Federation(APPLE(dr_lr=0.05, mu=mu).method(), quadratics(4)) for mu in (0.0, 3.0)
    )
    for run in (free, pulled):
        for number in range(1, 4):
            run.round(a_round(number, total=100))
    p0 = free.roster.shares
    distance = [
        sum(float((run.state(i).dr[0] - p0).norm()) for i in range(4)) for run in (free, pulled)
    ]
    assert distance[1] < distance[0]


@pytest.mark.parametrize("budget", [3, 7])
def test_a_budget_of_all_others_is_no_budget(budget):
    problem = quadratics(4)
    free, budgeted = (Federation(APPLE(budget=b).method(), problem) for b in (None, budget))
    for number in (1, 2, 3):
        free.round(a_round(number))
        budgeted.round(a_round(number))
    assert torch.equal(free.server.cores, budgeted.server.cores)
    assert all(torch.equal(free.state(i).dr, budgeted.state(i).dr) for i in range(4))


def test_own_copies_and_a_shared_bank_mix_alike():
    g = torch.Generator().manual_seed(0)
    p, bank, c, G = (
        torch.randn(*s, generator=g, dtype=torch.float64) for s in ((2, 4), (4, 6), (2, 6), (2, 6))
    )
    mine = torch.tensor([[True, False, False, False], [False, False, True, False]])
    copies = bank.expand(2, 4, 6)
    shared, copied = Mixture(p, mine, bank, c), Mixture(p, mine, copies, c)
    assert_close(shared.rows(), copied.rows())
    assert_close(shared.products(G), copied.products(G))
    assert_close(shared.products(G)[1], torch.stack([bank[0], bank[1], c[1], bank[3]]) @ G[1])
    expected = torch.stack(
        [p[0, 0] * c[0] + p[0, 1:] @ bank[1:], p[1] @ bank - p[1, 2] * bank[2] + p[1, 2] * c[1]]
    )
    assert_close(shared.rows(), expected)


@pytest.mark.parametrize("core_step", ["paper", "local"])
def test_with_a_budget_of_one_every_others_trained_core_comes_once_in_the_first_rounds(core_step):
    """Nothing in round 1, as everybody can make the initial cores; so all are trained that come in
    rounds 2 to N.
    """
    N = 5
    run = Federation(APPLE(budget=1, core_step=core_step).method(), quadratics(N))
    initial = run.server.cores.clone()
    received = [[] for _ in range(N)]
    for number in range(1, N + 1):
        downlink = run.downlink(a_round(number))
        for i in range(N):
            new_cores = [j for j in downlink["cores"].index[i].tolist() if j != i]
            received[i] += new_cores
            assert bool(new_cores) == (number > 1)
            assert all(not torch.equal(run.server.cores[j], initial[j]) for j in new_cores)
        run.round(a_round(number))
    assert [sorted(a) for a in received] == [[j for j in range(N) if j != i] for i in range(N)]


def test_a_core_that_has_never_come_up_is_not_handed_down():
    """Under partial participation: who asks for it keeps the copy it made; who has asked for none
    gets another one.
    """
    run = Federation(APPLE(budget=2, core_init="independent").method(), quadratics(4))
    run.round(a_round(1), ids=(0, 1))
    for number in (2, 3, 4):
        downlink = run.downlink(a_round(number))
        for i in (2, 3):
            assert sorted(downlink["cores"].index[i].tolist()) == [0, 1]
        for i in (0, 1):
            assert set(downlink["cores"].index[i].tolist()) <= {0, 1}
        run.round(a_round(number), ids=(0, 1))
    for j in (2, 3):
        assert torch.equal(run.clients.store.copies.models_of(0)["cores"][j], run.initial(j))


@pytest.mark.parametrize("core_step", ["paper", "local"])
def test_never_downloaded_comes_first_also_where_others_come_late(core_step):
    """Budget 1: 2 and 3 train in round 3 only.

    Who asked before for what was not there would count it as downloaded.
    """
    run = Federation(APPLE(budget=1, core_step=core_step).method(), quadratics(4))
    received = [[] for _ in range(4)]
    for number, cohort in enumerate([(0, 1), (0, 1), (0, 1, 2, 3), (0, 1), (0, 1)], 1):
        downlink = run.downlink(a_round(number), cohort)
        for position, i in enumerate(cohort):
            received[i].append([j for j in downlink["cores"].index[position].tolist() if j != i])
        run.round(a_round(number), ids=cohort)
        for i in cohort:
            downloaded = set(run.state(i).seen[0].nonzero().squeeze(1).tolist())
            assert downloaded - {i} == {j for new_cores in received[i] for j in new_cores}
    for i in (0, 1):
        assert received[i][:3] == [[], [1 - i], [1 - i]]
        assert sorted(received[i][3] + received[i][4]) == [2, 3]


def test_who_is_alone_asks_for_nobody_and_gets_the_first_that_come():
    run = Federation(APPLE(budget=2).method(), quadratics(4))
    run.round(a_round(1), ids=(0,))
    assert run.replies[0].uplink["request"].tolist() == [0, 0]
    run.round(a_round(2), ids=(1, 2))
    downlink = run.downlink(a_round(3), (0,))
    assert sorted(downlink["cores"].index[0].tolist()) == [1, 2]


def test_cores_that_were_not_fetched_keep_their_old_copy():
    run = Federation(APPLE(budget=1, core_init="independent").method(), quadratics(4))
    first = run.server.cores.clone()
    run.round(a_round(1))
    second, requested = run.server.cores.clone(), int(run.server.requests[0, 0])
    run.round(a_round(2))
    copies = run.clients.store.copies.models_of(0)["cores"]
    for j in range(1, 4):
        newest = second[j] if j == requested else first[j]
        assert torch.equal(copies[j], newest)
    assert requested in (1, 2, 3)


def test_bytes_follow_the_budget():
    """Beside cores, whose are there: a byte for each of five clients."""
    from pomona.federation.exchange import received_bytes

    run = Federation(APPLE(budget=2).method(), quadratics(5, d=7))
    downlink = run.downlink(a_round(), (1, 3))
    assert received_bytes(downlink, (1, 3)) == (5, 5)
    run.round(a_round())
    downlink = run.downlink(a_round(2), (1, 3))
    # two float64 cores of seven numbers
    assert received_bytes(downlink, (1, 3)) == (2 * 7 * 8 + 5,) * 2


@given(
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from(["private", "uniform"]),
)
def test_a_choice_is_others_only_without_repeats_and_of_the_right_size(
    N, index, budget, number, selection
):
    client = index % N
    settings = APPLE(budget=budget, selection=selection)
    p = torch.linspace(-1, 1, N)
    fetched = torch.arange(N) % 2 == 0
    available, roster = torch.ones(N, dtype=torch.bool), Roster((1,) * N)
    chosen = choose(settings, p, fetched, available, client, roster, 0, number).tolist()
    assert len(chosen) == limit(settings.budget, N) == len(set(chosen))
    assert client not in chosen
    assert chosen == sorted(chosen)
    assert all(0 <= j < N for j in chosen)


def test_never_downloaded_comes_first():
    fetched = torch.tensor([False, True, True, False, True, False])
    available, roster = torch.ones(6, dtype=torch.bool), Roster((1,) * 6)
    for number in range(1, 30):
        p = torch.ones(6)
        chosen = choose(APPLE(budget=3), p, fetched, available, 0, roster, 0, number).tolist()
        assert {3, 5} <= {*chosen}


def test_as_many_known_cores_are_drawn_as_there_are_places_however_far_coefficients_are_apart():
    p, available = torch.tensor([0.0, 1e30, 0.0, 1.0, 2.0]), torch.ones(5, dtype=torch.bool)
    chosen = by_relations(p, available, available, 0, Roster((1,) * 5), 3, 0, 10).tolist()
    assert len({*chosen}) == 3
    assert 1 in chosen


@pytest.mark.parametrize("offered", [(1, 2, 3), (1, 2)])
def test_known_cores_are_drawn_with_the_probabilities_of_equation_9(offered):
    """N = 4, M = 1, r = 11 behind round 12: b = max(1.5, 11 / 4) = 2.75, whoever is available;
    frequencies over 4000 seeds within 4 standard errors. A place without a member does not count.
    """
    p, fetched = torch.tensor([9.0, 0.0, 1.0, -2.0, 0.0]), torch.ones(5, dtype=torch.bool)
    available = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor(offered), True)
    power = 2.75 ** p[list(offered)].abs().double().numpy()
    expected, roster = power / power.sum(), Roster((1, 1, 1, 1, 0))
    draws = np.array(
        [
            int(choose(APPLE(budget=1), p, fetched, available, 0, roster, seed, 12)[0])
            for seed in range(4000)
        ]
    )
    for j, share in zip(offered, expected, strict=True):
        assert abs((draws == j).mean() - share) < 4 * math.sqrt(share * (1 - share) / 4000)


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=8), st.integers(0, 10**6))
def test_probabilities_sum_to_one_and_never_overflow(p, r):
    weight = probabilities(np.array(p), r, 3, 4)
    assert weight.sum() == pytest.approx(1)
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("shape", ["cosine", "exponential"])
def test_the_scheduler_falls_from_one_to_zero(shape):
    settings = APPLE(schedule=shape, schedule_share=0.3)
    values = [schedule(settings, a_round(number, total=100)) for number in range(1, 101)]
    assert values[0] == 1
    assert values[30:] == [0.0] * 70
    assert all(a > b for a, b in pairwise(values[:31]))
    if shape == "exponential":
        assert values[15] == pytest.approx(math.sqrt(1e-3))
    else:
        assert values[15] == pytest.approx(0.5)


def test_a_scheduler_of_no_rounds_is_zero():
    assert schedule(APPLE(schedule_share=0.0), a_round(1)) == 0


def test_momentum_and_decay_reach_both_rates():
    """Round 3 with decay .81 and momentum .5, two steps: by hand on one number per client."""
    from problems import Quadratics

    problem = Quadratics(torch.tensor([[2.0], [0.0]], dtype=torch.float64), [[0], [1]])
    run = Federation(APPLE(dr_lr=0.1).method(), problem)
    c0, p0 = run.initial()[0].item(), 0.5
    run.round(a_round(3, epochs=2, momentum=0.5, lr=0.2 * 0.81, decay=0.81))
    c, p, vc, vp = c0, [p0, p0], 0.0, [0.0, 0.0]
    for _ in range(2):
        g = p[0] * c + p[1] * c0 - 2.0
        vc, vp = 0.5 * vc + p[0] * g, [0.5 * vp[0] + g * c, 0.5 * vp[1] + g * c0]
        c, p = c - 0.162 * vc, [p[0] - 0.081 * vp[0], p[1] - 0.081 * vp[1]]
    assert run.state(0).core.item() == pytest.approx(c)
    assert run.state(0).dr[0].tolist() == pytest.approx(p)
