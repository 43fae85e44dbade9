"""Epsilon: published values, properties of an accountant, repeated releases of a batch, budgets and
projections.
"""

import math
import os
import sys
import warnings
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from private_problem import privacy, problem, rounds

from pomona.core.errors import ConfigError, PrivacyError
from pomona.core.training_settings import Passes
from pomona.methods import METHODS
from pomona.privacy.accounting import (
    LARGE_ORDERS,
    Budget,
    Event,
    Gradients,
    combined,
    epsilon,
    projected,
)
from pomona.privacy.settings import Privacy


def test_goldens_of_independent_accountants():
    """sigma 1.5, q 0.04, 2250 steps: dp-accounting's RDP gives 7.3293, its PLD accountant 6.769."""
    history = {Event(1.5, 0.04): 2250}
    rdp, prv = (epsilon(privacy(accountant=a), history) for a in ("rdp", "prv"))
    assert rdp == pytest.approx(7.3293, abs=0.01)
    assert prv == pytest.approx(6.779, abs=0.005)
    assert 6.769 <= prv + 0.02 <= rdp


EXACT = [
    (10, 0.001, 1000, 0.0082, 0.0087, 0.0087), (4, 0.001, 1000, 0.0219, 0.0338, 0.0317),
    (2, 0.001, 10000, 0.1755, 0.2013, 0.1833), (1, 0.001, 1000, 0.1490, 0.6778, 0.1589),
    (1, 0.01, 1000, 1.8282, 2.1014, 1.8384), (1.5, 0.04, 2250, 6.7688, 7.3293, 6.7791),
    (1, 0.1, 200, 9.9713, 11.0631, 9.9818), (2, 0.1, 500, 5.5555, 6.0346, 5.5658),
    (0.8, 0.05, 100, 5.7412, 6.6583, 5.7517), (4, 1.0, 3, 1.6980, 1.8473, 1.7081),
    (4, 1.0, 100, 13.2067, 14.1322, 13.2173), (50, 1.0, 1, 0.0586, 0.0702, 0.0659),
]  # fmt: skip
"""sigma, q, steps; dp-accounting 0.5.1 at delta 1e-5: its PLD accountant, which is exact, and its RDP
accountant (of (4, 0.001) and (50, 1) coarser than ours); and the default here.
"""


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_the_default_is_above_the_exact_number_by_a_hundredth_or_by_renyis_slack(case):
    sigma, q, count, exact, rdp, default = case
    history = {Event(sigma, q): count}
    renyi, numerical = (
        epsilon(Privacy(**TERMS, **options), history) for options in ({"accountant": "rdp"}, {})
    )
    assert exact <= numerical == pytest.approx(default, abs=6e-5)
    assert numerical <= min(exact + 0.011, renyi)
    assert renyi <= rdp + 6e-5


TERMS = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("n", "size", "epochs", "number", "sigma", "rdp", "pld"),
    [(500, 50, 5, 100, 1, 88.8, 68.5), (500, 50, 5, 100, 2, 21.3, 19.7), (500, 50, 1, 100, 1, 24.2, 21.8),
     (5000, 64, 5, 100, 1, 20.0, 18.7), (5000, 64, 1, 100, 1, 7.6, 7.0), (60, 10, 5, 100, 1, 138, 90),
     (60, 10, 1, 20, 2, 3.4, 3.0)],
)  # fmt: skip
def test_realistic_silos(n, size, epochs, number, sigma, rdp, pld):
    """delta = 1 / (10 n), against dp-accounting's two accountants: its PLD is tight, its RDP has
    coarser orders.

    Printed to one decimal, hence 1.2 %.
    """
    settings = privacy(noise_multiplier=sigma, delta=1 / (10 * n))
    got = epsilon(settings, projected(settings, n, size, [Gradients()], Passes(epochs), number))
    assert pld < got <= rdp * 1.012
    if rdp < 22:
        assert got == pytest.approx(rdp, rel=0.012)


def test_no_noise_is_no_privacy_and_no_release_costs_nothing():
    assert epsilon(privacy(), {}) == epsilon(privacy(), {Event(1.0, 0.1): 0}) == 0
    for accountant in ("rdp", "prv"):
        assert (
            epsilon(privacy(accountant=accountant), {Event(0.0, 0.1): 1, Event(1.0, 0.1): 5})
            == math.inf
        )


def test_one_full_batch_with_many_samples_is_the_plain_gaussian():
    """q = 1: the analytic Gaussian mechanism (Balle and Wang 2018) bounds PRV from below; sigma 1,
    delta 1e-5: 4.38.
    """
    assert epsilon(privacy(accountant="prv"), {Event(1.0, 1.0): 1}) == pytest.approx(4.38, abs=0.03)


@given(st.floats(0.6, 4), st.sampled_from([0.01, 0.1, 0.5]), st.integers(1, 300))
@settings(max_examples=4)
def test_epsilon_grows_with_steps_rate_and_quiet(sigma, q, count):
    base = epsilon(privacy(), {Event(sigma, q): count})
    assert epsilon(privacy(), {Event(sigma, q): count + 1}) >= base
    assert epsilon(privacy(), {Event(sigma, q * 1.5): count}) >= base
    assert epsilon(privacy(), {Event(sigma * 1.1, q): count}) <= base
    assert epsilon(privacy(delta=1e-6), {Event(sigma, q): count}) >= base


def test_events_add_up_whatever_their_order():
    a, b = Event(1.0, 0.1), Event(0.8, 0.05)
    assert epsilon(privacy(), {a: 30, b: 20}) == epsilon(privacy(), {b: 20, a: 30})


def test_k_releases_of_one_batch_cost_what_one_does_with_less_noise():
    """Full batches: k releases at sigma are one at sigma / sqrt(k), exactly, and RDP agrees."""
    assert combined([2.0] * 4) == pytest.approx(1.0)
    assert combined([3.0, 4.0]) == pytest.approx(1 / math.sqrt(1 / 9 + 1 / 16))
    assert combined([1.0, 0.0]) == 0
    assert epsilon(privacy(), {Event(2.0, 1.0): 4}) == pytest.approx(
        epsilon(privacy(), {Event(1.0, 1.0): 1})
    )


@given(st.floats(0.5, 20))
@settings(max_examples=3)
def test_a_budget_stops_at_the_last_step_that_fits(limit):
    limited = privacy(epsilon_budget=limit)
    budget, event, count = Budget(limited), Event(1.0, 0.2), 0
    while count < 600 and budget.allows({event: count + 1}):
        count += 1
    assert count == 0 or epsilon(limited, {event: count}) <= limit
    assert count == 600 or epsilon(limited, {event: count + 1}) > limit


def test_training_stops_before_the_budget_is_exceeded(tmp_path):
    settings = privacy(epsilon_budget=6.0)
    p = problem(tmp_path, settings, (12,))
    with pytest.raises(PrivacyError, match="client 0, round") as fault:
        rounds(METHODS["fedavg"]().method(), p, 50)
    assert fault.value.code == 9
    used = p.objective.epsilon(0)
    extended = Counter(p.objective.key_store(0).ledger.history()) + Counter({Event(1.0, 1 / 3): 1})
    assert used <= 6.0 < epsilon(settings, extended)


COVERED = [
    (name, {"fedphp": {"transfer_weight": 0.0}, "partialfed": {"rule": "lower-shared"}, "fed-rod": {"gamma": 0.0}, "moon": {"mu": 0.0},
            "perfcl": {"mu": 0.0, "gamma": 0.0},
            "feddbe": {"kappa": 0.0}, "fedproto": {"lambda": 0.0}, "fedtgp": {"lambda": 0.0}, "fedpac": {"lambda": 0.0},
            "fedas": {"alignment_epochs": 0}}
     .get(name.partition("+")[0], {}))
    for name in METHODS if name not in ("pfedfda", "gpfl")  # refused under privacy, or never covered
] + [("ditto", {"personal_epochs": 1}), ("ditto", {"personal_epochs": 3}), ("per-fedavg", {"order": "hf"}),
     ("fedrep", {"head_epochs": 1})]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), COVERED, ids=[f"{n} {o}" for n, o in COVERED])
def test_no_method_takes_more_gradients_than_its_projection_says(
    tmp_path, monkeypatch, name, options
):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # durability is tested elsewhere
    method = METHODS[name](**options)
    # and it asks for no more
    declared = [release.name for release in method.method().card.privacy.releases]
    p = problem(tmp_path, privacy(acknowledge=("metrics", "sample-counts", *declared)), (12, 9))
    rounds(method.method(), p, 2)
    for client, n in enumerate(p.sizes):
        plan = projected(privacy(), n, 4, method.method().card.privacy.gradients, Passes(2), 2)
        history = p.objective.key_store(client).ledger.history()
        assert history, "a method that takes no gradients"
        assert epsilon(privacy(), history) <= epsilon(privacy(), plan) * (1 + 1e-9)
        # no evaluation that trains
        if name in {"fedavg", "apple", "pfedme", "scaffold", "fedfomo"}:
            assert history == plan
        # These ask two models about the same batches: once, where the models are equal.
        if name in {"apfl", "ditto", "fed-rod"}:
            assert history.total() == plan.total()


@settings(max_examples=20)
@given(
    st.dictionaries(
        st.builds(Event, st.floats(0.3, 5.0), st.floats(0.001, 0.9) | st.just(1.0)),
        st.integers(1, 5000),
        min_size=1,
        max_size=3,
    ),
    st.floats(1e-9, 1e-2),
)
@pytest.mark.long
def test_releases_that_are_kept_give_opacus_epsilon_to_the_bit(history, delta):
    from opacus.accountants import create_accountant

    accountant = create_accountant("rdp")
    accountant.history = [(*event, count) for event, count in sorted(history.items())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orders = [*accountant.DEFAULT_ALPHAS, *LARGE_ORDERS]
        expected = accountant.get_epsilon(delta=delta, alphas=orders)
    assert epsilon(privacy(delta=delta), history) == expected


def test_without_opacus_the_message_says_how_to_install_it(monkeypatch):
    for name in ("opacus", *(module for module in sys.modules if module.startswith("opacus."))):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="install Pomona with its extra dp"):
        epsilon(privacy(), {Event(1.0, 0.1): 1})


def test_a_delta_too_small_for_the_numerical_accountant_is_one_line():
    with pytest.raises(ConfigError, match=r"delta = 1e-60.*accountant = rdp"):
        epsilon(privacy(accountant="prv", delta=1e-60), {Event(1.0, 1e-9): 1})
