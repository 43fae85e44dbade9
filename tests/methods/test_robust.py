"""Robust means: each rule against its definition and ByzFL's, the bound on what a liar moves, and
the limits in which a rule changes nothing.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.core.round import Roster
from pomona.methods import METHODS, is_builtin
from pomona.methods import resolve as method_of
from pomona.methods.mixtures import apple
from pomona.methods.robustness import robust, robust_rules
from pomona.storage.mapped_tensor import filed
from problems import Federation, a_round, quadratics, suited, tiny, trained, uneven

AVERAGING = [
    name for name, settings_type in METHODS.items() if settings_type().method().server.averages
]


def random(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean_of(name, W, w, sizes=None, **settings):
    """What a server with a rule makes of models W (n, k) after it has sent w (k,)."""
    settings_type = method_of(f"fedavg+{name}")
    server, roster = settings_type(**settings).method().server, Roster(tuple(sizes or [1] * len(W)))
    return server.aggregate(w, {"model": W}, tuple(range(len(W))), roster, a_round(1))


def plain(W, w, sizes=None):
    roster = Roster(tuple(sizes or [1] * len(W)))
    server = METHODS["fedavg"]().method().server
    return server.aggregate(w, {"model": W}, tuple(range(len(W))), roster, a_round(1))


# each rule by its definition


def test_clipped_is_the_weighted_mean_of_changes_of_at_most_twice_the_median_length():
    w, sizes = random(1, 4, 1)[0], [3, 1, 5, 1, 2]
    W = w + torch.diag(torch.tensor([1.0, 1.1, 1.2, 1.3, 100.0], dtype=torch.float64)) @ random(
        5, 4
    ).div(random(5, 4).norm(dim=1, keepdim=True))
    lengths = sorted(float((row - w).norm()) for row in W)
    expected = torch.zeros(4, dtype=torch.float64)
    for n, row in zip(sizes, W, strict=True):
        D = row - w
        expected += n / sum(sizes) * D * min(1.0, 2 * lengths[2] / float(D.norm()))
    assert_close(mean_of("clipped", W, w, sizes), w + expected)


def test_centred_clips_around_the_last_centre():
    w, W, sizes = random(1, 3, 1)[0], random(6, 3), [1, 2, 3, 4, 5, 6]
    v = w.clone()
    for _ in range(3):
        radii = [float((row - v).norm()) for row in W]
        t = 0.7 * sorted(radii)[2]
        steps = [
            n / 21 * (row - v) * min(1.0, t / r) for n, row, r in zip(sizes, W, radii, strict=True)
        ]
        v = v + sum(steps)
    estimate = mean_of("centred", W, w, sizes, robust_radius=0.7, robust_steps=3)
    assert_close(estimate, v)


def test_median_and_trimmed_mean_are_numpys_by_coordinate():
    for n in (1, 2, 5, 12):
        W, w = random(n, 7), torch.zeros(7, dtype=torch.float64)
        assert_close(mean_of("median", W, w).numpy(), np.median(W.numpy(), 0))
        f = min(int(0.34 * n), (n - 1) // 2)
        left = np.sort(W.numpy(), 0)[f : n - f]
        assert_close(mean_of("trimmed", W, w).numpy(), left.mean(0))


def test_the_geometric_median_on_a_line_is_the_weighted_median_and_in_a_triangle_fermats_point():
    line = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    w = torch.tensor([5.0], dtype=torch.float64)
    assert_close(mean_of("geometric", line, w, [1, 1, 1]), line[1], atol=1e-4, rtol=0)
    assert_close(mean_of("geometric", line, w, [1, 1, 5]), line[2], atol=1e-4, rtol=0)
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    z = mean_of("geometric", corners, torch.zeros(2, dtype=torch.float64))
    units = (corners - z) / (corners - z).norm(dim=1, keepdim=True)
    cosines = [float(units[i] @ units[j]) for i, j in itertools.combinations(range(3), 2)]
    assert cosines == pytest.approx([-0.5] * 3, abs=1e-6)  # each side is seen at 120 degrees


@pytest.mark.parametrize("chosen", [1, 3, None])
def test_krum_by_plain_loops(chosen):
    n, f, W = 9, 3, random(9, 5)
    scores = []
    for i in range(n):
        distances = sorted(float(((W[i] - W[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    m = chosen or n - f
    best = sorted(range(n), key=lambda i: scores[i])[:m]
    expected = sum(W[i] for i in best) / m
    settings_ = {} if chosen is None else {"robust_chosen": chosen}
    assert_close(mean_of("krum", W, random(1, 5, 1)[0], **settings_), expected)


def test_rules_are_byzfls():
    """Its Krum adds one neighbour more than the paper; its median of an even number is the lower
    one.
    """
    byzfl = pytest.importorskip("byzfl")
    for seed, n, f in ((0, 11, 3), (1, 5, 1), (2, 7, 0)):
        W, w = random(n, 40, seed), torch.zeros(40, dtype=torch.float64)
        p, G = torch.full((n,), 1 / n, dtype=torch.float64), robust_rules.gram(W, w)

        def equal(estimate, theirs, W=W, w=w):  # in float64 it takes arrays of NumPy only
            row = estimate if len(estimate) == len(w) else robust_rules.combined(W, w, estimate)
            assert_close(row.numpy(), theirs(W.numpy()))

        equal(robust_rules.median(W), byzfl.Median())
        equal(robust_rules.trimmed(W, f), byzfl.TrMean(f))
        equal(robust_rules.krum(G, 1, n - f - 1), byzfl.Krum(f))
        equal(robust_rules.krum(G, n - f, n - f - 1), byzfl.MultiKrum(f))
        t = torch.tensor(0.9, dtype=torch.float64)
        equal(robust_rules.centred(G, p, 4, lambda _, t=t: t), byzfl.CenteredClipping(L=4, tau=0.9))
        # it starts from 0, and both end at one point
        equal(robust_rules.geometric(G, p, 300, nu=0.1), byzfl.GeometricMedian(nu=0.1, T=300))


# what a liar moves

RULES = st.sampled_from(sorted(robust.RULES))


@settings(max_examples=60)
@given(RULES, st.integers(5, 9), st.integers(1, 4), st.integers(0, 10**6), st.floats(0, 12))
def test_a_liar_of_any_size_moves_the_result_by_less_than_the_honest_ones_are_apart(
    name, n, k, seed, size
):
    """For all rules the result stays within a multiple of the honest models' spread around the
    sent one; a mean moves by the size.
    """
    w, W = torch.zeros(k, dtype=torch.float64), random(n, k, seed)
    reach = float(W[1:].norm(dim=1).max())
    liar = 10**size * random(1, k, seed + 1)[0]
    estimate = mean_of(name, torch.cat([liar[None], W[1:]]), w)
    assert float(estimate.norm()) <= 2 * k**0.5 * reach * (1 + 1e-6)


@pytest.mark.parametrize("name", sorted(robust.RULES))
def test_a_liar_beyond_single_precision_leaves_no_rounding_behind(name):
    """In float32 a mean with 1e20 has no digit of the others left."""
    W, w = random(7, 50).float(), torch.zeros(50)
    huge = torch.cat([W[:6], torch.full((1, 50), 1e20)])
    smaller = torch.cat([W[:6], torch.full((1, 50), 1e3)])
    estimates = [mean_of(name, rows, w) for rows in (huge, smaller)]
    assert float(estimates[0].norm()) <= 2 * 50**0.5 * float(W.norm(dim=1).max())
    # the direction is the same: more size is no more effect
    assert_close(*estimates, atol=1e-2, rtol=0)


@pytest.mark.parametrize(("liars", "sizes"), [(1, [45, 20, 20, 15]), (2, [10, 10, 80])])
def test_the_geometric_median_arrives_from_liars_of_any_size_with_less_than_half_of_the_weight(
    liars, sizes
):
    """From a mean with 1e20, of which a step leaves 9 / 11, a hundred steps were too few."""
    W, w = random(len(sizes), 50) / 10 + 1, torch.zeros(50, dtype=torch.float64)
    lies = [torch.cat([W.new_full((liars, 50), distance), W[liars:]]) for distance in (1e3, 1e20)]
    estimates = [mean_of("geometric", rows, w, sizes) for rows in lies]
    assert_close(*estimates, rtol=0, atol=1e-4)
    assert float((estimates[1] - 1).norm()) < 10


@pytest.mark.parametrize("distance", [1e2, 1e12])
@pytest.mark.parametrize("error", [0.0, 1e-12, 1e-6])
def test_a_liar_where_the_steps_begin_does_not_hold_them_there(distance, error):
    """One of two liars lies where the other has drawn the point from which the steps begin."""
    honest, w = random(8, 30) / 10 + 1, torch.zeros(30, dtype=torch.float64)
    p, decoy, W = torch.full((10,), 0.1, dtype=torch.float64), honest.mean(0), honest
    for _ in range(200):
        W = torch.cat([honest, honest.new_full((1, 30), -distance), decoy[None]])
        r = W.norm(dim=1)
        usual = robust_rules.START_RADIUS * robust_rules.weighted_median(r, p)
        decoy = (p * robust_rules.shortening(r, usual)) @ W
    W[-1] = decoy * (1 + error)
    assert float((decoy - 1).norm()) > 50
    assert float((mean_of("geometric", W, w) - 1).norm()) < 1


@pytest.mark.parametrize("rule", ["trimmed", "krum"])
def test_a_rule_that_allows_for_no_liar_among_so_few_clients_says_so(rule):
    minimum = {"trimmed": 3, "krum": 5}[rule]
    settings_type = method_of(f"fedavg+{rule}")
    caution = settings_type().method().caution
    counts = [n for n in range(1, 12) if caution(a_round(1), n)]
    assert counts == list(range(1, minimum))
    assert not settings_type(robust_liars=0.0).method().caution(a_round(1), 2)


def test_the_smallest_of_eleven_sites_at_a_thousand_times_its_change():
    """A weighted mean follows it by p (s - 1) |D|; a clipped one by at most p (t + |D|)."""
    sizes = [270, 160, 150, 140, 130, 120, 110, 100, 90, 80, 20]
    w, W = random(1, 64, 3)[0], random(11, 64)
    W = w + (W - w) / (W - w).norm(dim=1, keepdim=True)  # all changes have length 1
    lying = torch.cat([W[:-1], (w + 1000 * (W[-1] - w))[None]])
    p = 20 / sum(sizes)
    change = plain(lying, w, sizes) - plain(W, w, sizes)
    # 14.6 times the length of an honest change
    assert float(change.norm()) == pytest.approx(p * 999)
    # the median length is 1, so the liar's counts as one of 2: one more than its honest one
    change = mean_of("clipped", lying, w, sizes) - mean_of("clipped", W, w, sizes)
    assert float(change.norm()) == pytest.approx(p * 1)


@settings(max_examples=40)
@given(RULES, st.integers(1, 8), st.integers(0, 10**6))
def test_the_order_of_the_clients_does_not_matter(name, n, seed):
    w, W = torch.zeros(3, dtype=torch.float64), random(n, 3, seed)
    sizes = [1 + i for i in range(n)]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    reordered = mean_of(name, W[order], w, [sizes[i] for i in order.tolist()])
    atol = 1e-7 if name == "geometric" else 1e-9  # at a client's model its distance is rounding
    assert_close(mean_of(name, W, w, sizes), reordered, atol=atol, rtol=1e-9)


# limits in which it is the mean


@pytest.mark.parametrize("name", sorted(robust.RULES))
@pytest.mark.parametrize("n", [1, 2, 12])
def test_of_equal_models_every_rule_is_that_model_to_the_bit(name, n):
    row, w = random(1, 9)[0].float(), random(1, 9, 1)[0].float()
    estimate = mean_of(name, row.repeat(n, 1), w, [1 + i for i in range(n)])
    if name == "centred" and n > 1:  # w + (row - w): once rounded
        assert_close(estimate, row)
    else:
        assert torch.equal(estimate, row)
    assert torch.equal(mean_of(name, w.repeat(n, 1), w), w)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["clipped", "centred"])
@pytest.mark.parametrize("name", AVERAGING)
def test_a_radius_beyond_all_changes_leaves_every_method_as_it_is_to_the_bit(name, rule):
    wide = method_of(f"{name}+{rule}")(robust_radius=1e6)
    runs = []
    for method in (METHODS[name](), wide):
        run = trained(method, suited(method, quadratics(3, samples=4)))
        runs.append(run)
    assert torch.equal(runs[0].server, runs[1].server)
    for reply, wide_reply in zip(runs[0].replies, runs[1].replies, strict=True):
        assert all(torch.equal(reply.uplink[k], wide_reply.uplink[k]) for k in reply.uplink)


def test_a_round_of_one_client():
    w = random(1, 4)[0]
    for name in robust.RULES:
        W = random(1, 4, 1)
        assert_close(mean_of(name, W, w), W[0])


@pytest.mark.parametrize("name", sorted(robust.RULES))
def test_models_in_files_have_the_same_result(name, tmp_path):
    w, W = random(1, 40)[0].float(), random(7, 40, 1).float()
    in_files = filed(W, tmp_path)
    assert torch.equal(mean_of(name, in_files, w), mean_of(name, W, w))


# numbers beside the models


def step_of(name, numbers, sizes, largest):
    """By how much of the estimate's distance a server moves, with four clients' equal models."""
    w, W = torch.zeros(1).double(), torch.ones(4, 1).double()
    uplink = {"model": W} | {k: torch.tensor(v).double().unsqueeze(1) for k, v in numbers.items()}
    server, round_ = method_of(name)().method().server, a_round(1, batch_size=1, lr=0.5)
    return float(server.aggregate(w, uplink, (0, 1, 2, 3), Roster(sizes, largest), round_))


@pytest.mark.parametrize("rule", sorted(robust.RULES.keys() - {"clipped"}))
def test_numbers_beside_models_decide_how_far_an_estimate_is_followed(rule):
    """FedNova: steps a = (1, 1, 1, 5), p = a / 8: tau = 28 / 8, sum_i p_i / a_i = 1 / 2. q-FedAvg,
    |D_i| / lr = 2: of losses F_i it is mean F / (4 lr + mean F), at most 1.
    """
    steps, sizes = [1.0, 1.0, 1.0, 5.0], (1, 1, 1, 5)
    assert step_of(f"fednova+{rule}", {"steps": steps}, sizes, 1.0) == pytest.approx(28 / 8 / 2)
    assert step_of(f"fednova+{rule}", {"steps": steps}, sizes, 0.5) == pytest.approx(1)
    for largest in (1.0, 0.5):
        for lie, mean in ((1.0, 1.0), (4e6 - 3, 1e6)):
            step = step_of(f"q-fedavg+{rule}", {"risk": [1, 1, 1, lie]}, (1,) * 4, largest)
            assert step == pytest.approx(mean / (4 * 0.5 + mean))


# names, and whom a rule names


def test_clipped_and_krum_name_whom_they_count_for_less():
    w, W = torch.zeros(3, dtype=torch.float64), 1 + 0.01 * random(7, 3)
    W[4] *= 30
    roster, ids = Roster((1,) * 9), (0, 1, 2, 3, 5, 7, 8)
    for name, message in (("clipped", "counts as one of"), ("krum", "does not count")):
        server = method_of(f"fedrep+{name}")(**({"robust_liars": 0.2} if name == "krum" else {}))
        server = server.method().server
        notes = server.capped_clients(w, {"model": W}, ids, roster, a_round(1))
        assert list(notes) == [5]
        assert message in notes[5]
        assert not server.capped_clients(w, {"model": W[:4]}, ids[:4], roster, a_round(1)).get(5)


def test_clipped_says_that_its_radius_is_of_clients_that_have_not_moved():
    w, changes = random(1, 3)[0], random(3, 3)
    for most_models, added in ((w.repeat(4, 1), True), (w + random(4, 3), False)):
        W = torch.cat([most_models, 20 + changes])
        server = method_of("fedavg+clipped")().method().server
        notes = server.capped_clients(
            w, {"model": W}, tuple(range(7)), Roster((1,) * 7), a_round(1)
        )
        assert set(notes) == {4, 5, 6}
        assert all(("most clients have hardly changed" in text) == added for text in notes.values())


def test_an_apple_client_moves_cores_that_are_out_of_reach():
    cores, valid = random(8, 5), torch.tensor([True] * 6 + [False, True])
    cores[3] *= 1e6
    cores[6] = 1e9  # not a member
    new = apple.within_reach(cores, valid, 2.0)
    members = [0, 1, 2, 3, 4, 5, 7]
    middle = torch.from_numpy(np.median(cores[members].numpy(), 0))
    radii = (cores - middle).norm(dim=1)
    assert [i for i in range(8) if not torch.equal(new[i], cores[i])] == [3]
    assert_close((new[3] - middle).norm(), 2 * radii[members].sort().values[3])
    assert_close(new[3] - middle, (cores[3] - middle) * (new[3] - middle).norm() / radii[3])
    fewer = cores[:3]
    assert apple.within_reach(fewer, valid[:3], 1e6) is fewer


def test_the_median_of_cores_has_a_clients_own_current_one():
    """Own cores 2 and 4, of which no download knows, and 1, 3, 9.

    Of (2, 1, 3, 9) the median is 2.5, distances are 0.5, 1.5, 0.5, 6.5, and their lower median 0.5:
    within twice that, 1 becomes 1.5 and 9 becomes 3.5. Of (0, 4, 3, 9) they are 3.5, 3.5, 0.5, 0.5,
    5.5 and again 0.5: 0 becomes 2.5, and 9 becomes 4.5.
    """
    available = torch.ones(4, dtype=torch.bool)
    stored = torch.tensor([[0.0, 1.0, 3.0, 9.0]]).double().T  # what a silo has: 0 for its own
    first = torch.tensor([[2.0, 1.5, 3.0, 3.5]]).double().T
    C = torch.tensor([[2.0], [4.0]]).double()
    bounded = apple.bounded(stored, C[:1], (0,), available, 2.0)
    assert torch.equal(bounded, first)
    second = torch.tensor([[2.5, 4.0, 3.0, 4.5]]).double().T
    for cores in (stored, torch.stack([stored, stored])):  # one bank for all, and a copy each
        bounded = apple.bounded(cores, C, (0, 1), available, 2.0)
        assert torch.equal(bounded, torch.stack([first, second]))
    assert stored[:, 0].tolist() == [0.0, 1.0, 3.0, 9.0]


@pytest.mark.parametrize("budget", [None, 1])
def test_a_radius_is_counted_from_the_median_with_the_core_as_trained(budget):
    """After a round the own core has moved. One step of the row then is dr_lr <g, c_j>, with cores
    by hand.
    """
    method = apple.APPLE(dr_lr=0.01, core_radius=1.0, budget=budget, core_init="independent")
    run = Federation(method.method(), uneven(2, 2, 2, 2))
    run.round(a_round(1, lr=1.0))
    p, core, bank = run.state(0).dr[0], run.state(0).core[0], run.server.cores
    run.round(a_round(2, lr=0.1))
    stored = bank if budget is None else run.clients.store.copies.models_of(0)["cores"]
    cores = torch.cat([core.unsqueeze(0), stored[1:]]).numpy()
    middle = np.median(cores, 0)
    distances = np.linalg.norm(cores - middle, axis=1)
    factors = np.minimum(1, np.sort(distances)[1] / distances)[:, None]
    bounded = torch.from_numpy(middle + factors * (cores - middle))
    bounded[0] = core
    g = p @ bounded - run.problem.targets[run.problem.rows[0]].mean(0)
    assert_close(run.state(0).dr[0], p - 0.01 * bounded @ g)


@pytest.mark.long
@pytest.mark.parametrize("step", ["paper", "local"])
def test_a_radius_keeps_apple_from_a_liar_and_changes_nothing_without_one(step):
    lies = {"attack": {"clients": [1], "kind": "scale", "strength": 90.0}, "rounds": 6}

    def loss(settings, **overrides):
        run = pomona.run(tiny("apple", {"core_step": step, **settings}, **overrides))
        last = run.curve("personal", "trained", "test")[-1]
        honest = [v for c, v in zip(last.clients, last.loss, strict=True) if c != 1]
        return max(v if v is not None else np.inf for v in honest)

    assert loss({"core_radius": 1e6}, rounds=6) == loss({}, rounds=6)
    honest, bounded = loss({}, rounds=6), loss({"core_radius": 2.0}, **lies)
    assert bounded < 1.5 * honest
    assert bounded < loss({}, **lies)


def test_names_are_made_once_and_in_one_order():
    assert method_of("fedrep+median+adam") is method_of("fedrep+median+adam")
    assert is_builtin("ditto+ala+krum")
    assert not is_builtin("fedrep+adam+median")
    assert not is_builtin("fedrep+median+median")
    title = method_of("fedrep+median+adam")().method().card.presentation.title
    assert title == "FedRep+median+adam"


@pytest.mark.parametrize(
    "name", ["apple+median", "fedavgm+clipped", "scaffold+krum", "cfl+trimmed"]
)
def test_methods_whose_server_does_not_average_are_refused(name):
    with pytest.raises(ConfigError, match="keeps something else"):
        method_of(name)
