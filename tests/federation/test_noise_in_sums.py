"""Noise of several clients in a sum: what it counts for, and where it does not."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pomona
from pomona.config import merge, resolve
from pomona.core.errors import ConfigError, DivergedError
from pomona.core.round import Roster
from pomona.federation.noise_in_sums import coarse
from pomona.federation.secure_sum import require_sums
from pomona.methods import METHODS
from pomona.privacy.accounting import effective
from pomona.privacy.ledger import Draw, Ledger
from pomona.privacy.noise import KeyStore
from pomona.record.run_folder import load
from pomona.results.summary_table import run_table, table
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from pomona.testing.conformance import small

SIGMA, C, LR, CLIENTS, HONEST, ROUNDS = 2.0, 0.5, 0.1, 4, 3, 3
PRIVACY = {
    "noise_multiplier": SIGMA,
    "max_grad_norm": C,
    "delta": 1e-4,
    "accountant": "rdp",
    "honest": HONEST,
    "acknowledge": ["sample-counts", "metrics", "unlimited-epsilon", "noise-of-others"],
}
TERMS = {"max_norm": 50.0, "minimum": CLIENTS}


def config(method="fedavg", **settings):
    tree = {"privacy": {**PRIVACY}, "secure_aggregation": {**TERMS}, "local_steps": 1}
    merge(tree, {"rounds": ROUNDS, "batch_size": 240, **settings})
    return small({"name": method}, **tree)


@given(
    st.lists(st.integers(1, 500), min_size=2, max_size=8),
    st.integers(1, 600),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_the_noise_in_any_sum_is_at_least_what_counts(sizes, batch, seed):
    """By the weights that a sum has: a sample moves it by p_k C / L_k, a client's noise in it is
    p_i sigma C / L_i.
    """
    rng = np.random.default_rng(seed)
    ids = tuple(sorted(rng.choice(len(sizes), rng.integers(2, len(sizes) + 1), False).tolist()))
    weights = dict(zip(ids, Roster(tuple(sizes)).weights(ids).tolist(), strict=True))
    factors = {i: weights[i] / min(batch, sizes[i]) for i in ids}
    honest = rng.choice(ids, rng.integers(1, len(ids) + 1), False).tolist()
    k, q = honest[0], min(1.0, batch / sizes[honest[0]])
    noise = SIGMA * math.sqrt(sum(factors[i] ** 2 for i in honest)) / factors[k]
    assert noise >= effective(SIGMA, q, len(honest)) * (1 - 1e-12)
    if batch >= max(sizes):
        assert noise == pytest.approx(SIGMA * math.sqrt(len(honest)))


def test_epsilon_is_that_of_an_accountant_for_the_noise_of_the_honest():
    opacus = pytest.importorskip("opacus.accountants")
    scenario = Scenario.prepare(config())
    for computed, sigma in (
        (epsilons(scenario), SIGMA * math.sqrt(HONEST)),
        (epsilons(scenario, own_noise_only=True), SIGMA),
    ):
        accountant = opacus.RDPAccountant()
        accountant.history = [(sigma, 1.0, ROUNDS)]
        assert computed == pytest.approx([accountant.get_epsilon(PRIVACY["delta"])] * CLIENTS)


def model(folder):
    from safetensors.numpy import load_file

    read = load_file(folder / "models" / "client-00.safetensors")
    return np.concatenate([t.reshape(-1) for _, t in sorted(read.items())])


def test_the_models_noise_is_that_of_all_clients(tmp_path):
    """Full batches: each sum of gradients has noise sigma C, and the mean divides by all samples.

    Of 610 numbers the standard deviation is known to 1 / sqrt(2 * 610) = 3 %.
    """
    step = {"rounds": 1, "local_steps": 1}
    pomona.run(config(**step, privacy={"seed": 1}), tmp_path / "noised")
    pomona.run(config(**step, privacy={"seed": 1, "noise_multiplier": 0.0}), tmp_path / "clipped")
    noise = model(tmp_path / "noised") - model(tmp_path / "clipped")
    n = sum(len(c.train) for c in Scenario.prepare(config()).partition.clients)
    assert len(noise) == 610
    assert noise.std() == pytest.approx(LR * SIGMA * C * math.sqrt(CLIENTS) / n, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": {"honest": CLIENTS}}, "knows its own noise: .* = 3"),
        ({"local_steps": 2}, "set local_steps = 1"),
        ({"method": "ditto"}, "ditto sends more"),
        ({"method": "fedala"}, "fedala sends more"),
        ({"method": "fedrep"}, "fedrep sends more"),
        ({"method": "fedavg-local"}, "has trained"),
        ({"method": "fedavg+median"}, "needs each client's model"),
        ({"optimizer": {"max_grad_norm": 1.0}}, "without clipping"),
        ({"optimizer": {"name": "adam"}}, "without clipping"),
        ({"largest_share": 0.5}, "set largest_share = 1"),
    ],
)
def test_where_noise_does_not_add_up_it_does_not_count(settings, message):
    with pytest.raises(ConfigError, match=message):
        require_sums(config(**settings))


def test_without_sums_it_does_not_count():
    tree = config().tree()
    del tree["secure_aggregation"]
    with pytest.raises(ConfigError, match="set secure_aggregation"):
        require_sums(resolve(tree))


@pytest.mark.parametrize("name", ["fedavg", "fedavg-ft", "fedprox", "fedadam", "fedprox+momentum"])
def test_methods_that_send_their_step_are_taken(name):
    require_sums(config(method=name, momentum=0.9, weight_decay=1e-4))


def test_few_methods_send_their_step():
    """A new one has to be thought of."""
    assert {n for n, method in METHODS.items() if method().method().client.sends_step} == {
        *("fedavg", "fedavg-local", "fedavg-ft", "fedavg-data", "fedprox", "fedprox-ft"),
        *("fedavgm", "fedadagrad", "fedyogi", "fedadam", "ffa-lora"),
    }


def test_a_record_has_both_figures_and_no_scores_of_trained_models(tmp_path):
    result = pomona.run(config(privacy={"epsilon_budget": 1e3}), tmp_path / "run")
    privacy, scenario = result.summary["privacy"], Scenario.prepare(config())
    assert privacy["clients"] == pytest.approx(epsilons(scenario))
    assert privacy["alone"] == pytest.approx(epsilons(scenario, own_noise_only=True))
    text = f"{max(privacy['clients']):.3g} in sums, {max(privacy['alone']):.3g} by own noise alone"
    assert text in {
        cell.partition(" (")[0] for row in run_table(table([result])).rows for cell in row
    }
    assert {(e.model, e.when) for e in result.evaluations} == {("global", "received")}
    card = (tmp_path / "run/models/client-00.card.md").read_text()
    assert "sums of 4 clients or more alone, of which up to 1 may be with them" in card


def test_a_budget_counts_the_noise_of_the_honest():
    """It is exceeded by the own noise alone."""
    scenario = Scenario.prepare(config())
    shared, unshared = max(epsilons(scenario)), max(epsilons(scenario, own_noise_only=True))
    assert unshared > shared
    result = pomona.run(config(privacy={"epsilon_budget": (shared + unshared) / 2}))
    assert len(result.rounds) == ROUNDS


def test_fine_tuning_counts_its_own_noise_alone():
    """Its models leave no client, but their scores do."""
    tuned = Scenario.prepare(config(method="fedavg-ft", data={"validation_share": 0.0}))
    longer = Scenario.prepare(config(rounds=ROUNDS + 1))
    assert epsilons(tuned)[0] > epsilons(longer, own_noise_only=True)[0]


def test_a_resumed_run_has_the_same_ledgers(tmp_path):
    seeded = {"seed": 3}
    pomona.run(config(privacy=seeded), tmp_path / "whole")
    pomona.run(config(privacy=seeded, rounds=2), tmp_path / "part")
    pomona.run(config(privacy=seeded), tmp_path / "part", resume=True)
    for i in range(CLIENTS):
        ledger, resumed_ledger = (
            (tmp_path / name / f"private/dp/client-{i:02d}/ledger.jsonl").read_text()
            for name in ("whole", "part")
        )
        assert ledger == resumed_ledger
        assert ledger.count('"honest": 3') == ROUNDS
    unbroken, resumed = (load(tmp_path / name).summary["privacy"] for name in ("whole", "part"))
    assert unbroken == resumed


def test_changes_are_not_clipped_and_a_sum_that_is_too_long_ends_the_run(tmp_path):
    """Noise in a client's change is as long as LR SIGMA C sqrt(610) / n_i, 0.05 for 50 samples; in
    the sum as 2 LR SIGMA C sqrt(610) / n, 0.026 for 192.
    """
    for name, max_norm, honest in (("wide", 50.0, 3), ("narrow", 0.06, 3), ("clipped", 0.06, 1)):
        terms, privacy = {"max_norm": max_norm, "bits": 64}, {"seed": 1, "honest": honest}
        run = config(rounds=1, privacy=privacy, secure_aggregation=terms)
        pomona.run(run, tmp_path / name)
    wide, narrow, clipped = (model(tmp_path / name) for name in ("wide", "narrow", "clipped"))
    assert narrow == pytest.approx(wide, abs=1e-6)
    assert np.abs(clipped - wide).max() > 1e-4
    with pytest.raises(DivergedError, match="raise max_norm"):
        pomona.run(config(rounds=1, secure_aggregation={"max_norm": 0.01}))


@pytest.mark.parametrize(
    ("size", "bits", "max_norm", "decay", "message"),
    [
        (1.0, 32, 50.0, 0.0, ""),
        (2.0**20, 32, 50.0, 0.0, "numbers of 0.12 .* raise lr"),
        (1.0, 32, 1e6, 0.0, "bits = 64"),
        (1.0, 64, 1e6, 0.0, ""),
        (1.0, 32, 50.0, 1.0, ""),
        (16.0, 32, 50.0, 2.0**16 / LR, "numbers of 0.12 .* lower weight_decay"),
        (math.inf, 32, 50.0, 0.0, "numbers of inf"),
    ],
)
def test_a_model_of_large_numbers_cannot_round_the_noise_away(size, bits, max_norm, decay, message):
    """A server could otherwise see by the steps of float32 which changes are 0.

    They are 2^-23 of a number, 0.125 at 2^20; of a decay they are those of lr weight_decay w.
    """
    terms = {"max_norm": max_norm, "bits": bits}
    reason = coarse(
        {"model": torch.tensor([0.0, -size])},
        60,
        Roster((60, 60, 60, 60)),
        LR,
        config(secure_aggregation=terms, weight_decay=decay),
    )
    assert re.search(message, reason) if message else not reason


def test_runs_that_share_a_key_have_other_noise_each(tmp_path):
    """The same noise in two sums, of which one lacks a client, would tell that client's change."""
    settings = config().privacy
    draw, row, total = Draw(1, "training", 0, 20, 20), torch.ones(5), torch.zeros(5)

    def released(run, folder, privacy=settings, draw=draw):
        store = KeyStore.open(tmp_path / folder, 0, privacy, run=run)
        return store.release(draw, row, total.double())

    first, repeated, other_run = released("ab", "one"), released("ab", "one"), released("ef", "one")
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other_run)
    # two releases of one batch, each of the noise of three
    history = Ledger.open(tmp_path / "one/client-00/ledger.jsonl").history()
    ((event, count),) = history.items()
    assert (event.q, count) == (1.0, 1)
    assert event.sigma == pytest.approx(SIGMA * math.sqrt(HONEST) / math.sqrt(2))
    tuning = replace(draw, purpose="finetuning")
    tuned, tuned_in_other_run = (released(run, "one", draw=tuning) for run in ("ab", "ef"))
    assert torch.equal(tuned, tuned_in_other_run)
