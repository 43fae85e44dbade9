"""A number beside a model is a weight: whatever a member reports, its part in a mean is at most the
agreed share.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.round import Roster, reweighted
from pomona.methods import METHODS
from pomona.methods.one_model import fednova
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.fednova import FedNova, length
from pomona.methods.one_model.q_fedavg import QFedAvg
from pomona.storage.tensor_validation import non_finite
from pomona.testing.conformance import MODELS
from problems import Federation, a_round, quadratics, suited, uneven

EXTREMES = [5e-324, 1e-300, 1e-3, 0.0, -1.0, -1e30, 50.0, 1e30, torch.finfo(torch.float64).max]
EXTREMES += [float("nan"), float("inf")]
VARIANTS = [
    *((name, {}) for name in METHODS),
    ("fednova", {"mu": 0.3}),
    ("q-fedavg", {"q": 100.0}),
    ("q-fedavg", {"q": 0.1}),
]
AVERAGING = [
    (n, s) for n, s in VARIANTS if METHODS[n](**s).method().server.global_model or n == "fedas"
]


OF_ONE_CLIENT = {"fedpac"}
"""Methods whose numbers decide how much of one's own head others take, and no mean of all."""


def played(settings, problem, largest, **passes):
    """A round's server state, uplinks and all other arguments of ``aggregate``, before its call."""
    run = Federation(settings.method(), problem)
    run.roster = replace(run.roster, largest=largest)
    state, round_ = run.server, a_round(**passes)
    run.round(round_)
    uplink = {k: torch.stack([r.uplink[k] for r in run.replies]) for k in run.replies[0].uplink}
    return run.method.server, state, uplink, (run.ids, run.roster, round_)


def model(server, state, ids, roster, round_):
    """The model that the server sends, as it is used."""
    downlink = server.downlink(state, ids, roster, round_)
    rows = downlink.get("mean_model", downlink["model"])
    return rows.bank[rows.index[0]]


def movements(server, state, uplink, arguments):
    """Movement of the next model along each client's own direction, after a unit step of each along
    it (n,).
    """
    n, name = len(arguments[0]), "model" if "model" in uplink else "model_delta"
    w = model(server, state, *arguments)
    unmoved = (w if name == "model" else torch.zeros_like(w)).repeat(n, 1)
    stepped = unmoved + torch.eye(n, len(w)).to(w)
    models = [
        model(server, server.aggregate(state, {**uplink, name: W}, *arguments), *arguments)
        for W in (stepped, unmoved)
    ]
    return (models[0] - models[1])[:n].abs()


def forged(uplink, value):
    """The uplinks with everything except rows of the first client replaced, and whether they are
    admitted.
    """
    d = max(t[0].numel() for t in uplink.values())
    lie = {k: t.clone() for k, t in uplink.items()}
    for k, t in lie.items():
        if t.is_floating_point() and t[0].numel() < d:
            lie[k][0] = value
    return lie


@pytest.mark.parametrize(
    ("name", "settings"), AVERAGING, ids=[f"{n}{s or ''}" for n, s in AVERAGING]
)
@pytest.mark.parametrize(("members", "largest"), [(5, 0.5), (4, 0.3), (3, 0.5), (2, 0.5)])
def test_no_number_gives_a_member_more_than_the_agreed_share(name, settings, members, largest):
    """Of every method whose clients learn one model, the next method included: influence is
    measured, not computed.

    What is refused has none; of m members somebody has 1/m at least.
    """
    method = METHODS[name](**settings)
    problem = suited(method, quadratics(members, samples=4, d=9))
    server, state, uplink, arguments = played(method, problem, largest, epochs=2, batch_size=2)
    share = max(largest, 1 / members)
    for value in [None, *EXTREMES]:
        lie = uplink if value is None else forged(uplink, value)
        tensors = {k: t[0] for k, t in lie.items()}
        if non_finite(tensors) or server.invalid(tensors):
            assert value is not None, "an honest member is let in"
            continue
        moves = movements(server, state, lie, arguments)
        assert torch.isfinite(moves).all()
        assert moves[0] <= share * moves.sum() * (1 + 1e-6), f"{value}: {moves / moves.sum()}"
        assert moves[1:].min() > 0, "the others count"


def test_all_other_methods_send_no_number_beside_models():
    """Their servers hand rows on, or mix them by what rows and samples say."""
    for name, settings in VARIANTS:
        problem = suited(METHODS[name](**settings), quadratics(3, samples=4, d=9))
        _, _, uplink, _ = played(METHODS[name](**settings), problem, 0.5)
        numbers = {
            k for k, t in uplink.items() if t.is_floating_point() and t[0].numel() == 1
        } - MODELS
        tried = name in {*(n for n, _ in AVERAGING), *OF_ONE_CLIENT}
        assert not numbers or tried, (name, numbers)


@pytest.mark.parametrize("steps", [1e-3, 8 * 50.0, 8 / 50, 1e30, 7.999])
def test_fednova_counts_the_steps_that_samples_make(steps):
    """Five silos of 4 samples, 2 epochs in batches of 1: 8 steps each, FedAvg to the bit, whatever
    one of them says.
    """
    problem = quadratics(5, samples=4)
    passes = {"epochs": 2, "batch_size": 1}
    server, state, uplink, arguments = played(FedNova(), problem, 0.5, **passes)
    honest = server.aggregate(state, uplink, *arguments)
    fedavg, fedavg_state, plain, _ = played(FedAvg(), problem, 0.5, **passes)
    assert torch.equal(honest, fedavg.aggregate(fedavg_state, plain, *arguments))
    assert server.capped_clients(state, uplink, *arguments) == {}
    lie = forged(uplink, steps)
    assert torch.equal(server.aggregate(state, lie, *arguments), honest)
    assert server.capped_clients(state, lie, *arguments) == {
        0: f"steps {steps:.4g}, and its samples make 8 to 8; it counts by those"
    }


def test_fednova_knows_what_batchnorm_makes_of_a_sample_left_over():
    """5 samples in batches of 2: 3 steps an epoch, or 2 where the last sample joins the batch
    before.
    """
    server, state, uplink, arguments = played(
        FedNova(), uneven(5, 4, 4), 0.5, batch_size=2, epochs=3
    )
    assert uplink["steps"].squeeze(1).tolist() == [9, 6, 6]
    for steps, capped in ((9, False), (6, False), (5.9, True), (9.1, True)):
        assert bool(server.capped_clients(state, forged(uplink, steps), *arguments)) is capped


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.19), (0.9, 0.19)])
def test_fednovas_length_is_the_clients_own_to_the_bit(momentum, pull):
    settings, problem = FedNova(mu=pull / 0.1), quadratics(1, samples=3)
    _, _, uplink, _ = played(settings, problem, 1.0, epochs=4, batch_size=1, momentum=momentum)
    assert float(uplink["steps"]) == length(12, momentum, settings.mu * 0.1)


@pytest.mark.parametrize("steps", [10_001, 123_457, 2**53])
def test_fednovas_length_of_any_number_of_steps_takes_no_time(steps):
    """The paper's sums: with momentum rho, and with the proximal term alone."""
    pull, rho = 1e-6, 0.9
    assert length(steps, 0.0, pull) == pytest.approx(
        -math.expm1(steps * math.log1p(-pull)) / pull, rel=1e-9
    )
    assert length(steps, rho, 0.0) == pytest.approx(
        (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho), rel=1e-9
    )
    assert length(steps, rho, 2.5) == math.inf or math.isnan(length(steps, rho, 4.5))


def test_fednova_names_nobody_for_the_rounding_of_many_steps(monkeypatch):
    monkeypatch.setattr(fednova, "EXACT_STEPS", 50)
    server, state, uplink, arguments = played(
        FedNova(mu=0.01), uneven(777, 4), 1.0, batch_size=1, epochs=1, momentum=0.5
    )
    assert server.capped_clients(state, uplink, *arguments) == {}


def test_fednova_under_a_limit_moves_a_model_no_further_than_clients_went():
    """16, 2, 2 and 2 samples, batches of 1: p = (1/2, 1/6, 1/6, 1/6), p/a = (1/32, 1/12, 1/12,
    1/12): 1/9, 8/27 ...
    """
    server, state, uplink, arguments = played(FedNova(), uneven(16, 2, 2, 2), 0.5, batch_size=1)
    assert_close(
        movements(server, state, uplink, arguments),
        torch.tensor([1 / 9, *3 * [8 / 27]], dtype=torch.float64),
    )
    free = replace(arguments[1], largest=1.0)
    p, a = torch.tensor([16, 2, 2, 2]).double() / 22, torch.tensor([16, 2, 2, 2]).double()
    assert_close(
        movements(server, state, uplink, (arguments[0], free, arguments[2])), p * (p @ a) / a
    )


@pytest.mark.parametrize("times", [1.0, 20.0, 1000.0, 1e30, 1e300])
def test_q_fedavg_limits_what_a_loss_weighs(times):
    """Five clients of one loss F, q = 1: one that says t F has t / (t + 4) of the mean, here at
    most 1/2; others share.
    """
    problem = quadratics(5, samples=4)
    server, state, uplink, arguments = played(QFedAvg(q=1.0), problem, 0.5)
    uplink["risk"][:] = 1.0
    lie = forged(uplink, times)
    share = min(times / (times + 4), 0.5)
    moves = movements(server, state, lie, arguments)
    assert_close(
        moves / moves.sum(), torch.tensor([share, *4 * [(1 - share) / 4]], dtype=torch.float64)
    )
    assert moves.sum() <= 1 + 1e-9
    if times > 4:
        (note,) = server.capped_clients(state, lie, *arguments).items()
        assert note == (
            0,
            f"risk {times:.4g}, by which it has {100 * times / (times + 4):.3g} % of the mean; "
            "it counts for 50 %",
        )
    else:
        assert server.capped_clients(state, lie, *arguments) == {}


WEIGHTS = st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e300)), min_size=1, max_size=8)


@given(WEIGHTS, st.floats(0.01, 1.0))
def test_weights_that_a_method_makes_keep_the_limit(clients, largest):
    sizes, ratios = zip(*clients, strict=True)
    p = Roster(sizes, largest).weights(tuple(range(len(sizes)))).tolist()
    counted = [n * r for n, r in zip(p, ratios, strict=True)]
    if not sum(counted):
        return
    weights = reweighted(p, counted, largest)
    if largest == 1:
        assert weights == counted
        return
    assert sum(weights) <= min(sum(counted), 1) * (1 + 1e-8)
    assert max(weights) <= max(largest, 1 / len(p)) * sum(weights) * (1 + 1e-8)
    free = [
        i
        for i in range(len(p))
        if weights[i] < max(weights) * (1 - 1e-6) and counted[i] > 1e-6 * sum(counted)
    ]
    assert all(
        weights[i] / counted[i] == pytest.approx(weights[free[0]] / counted[free[0]], rel=1e-4)
        for i in free
    )
