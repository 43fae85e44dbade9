"""An attack on the mechanism itself: it must not distinguish two neighbours better than epsilon
allows.
"""

import math

import numpy as np
import pytest
import torch
from private_problem import privacy
from scipy import stats

from pomona.core.rng import stream
from pomona.privacy.accounting import Event, epsilon
from pomona.privacy.ledger import Draw
from pomona.privacy.noise import KeyStore, gaussian, poisson

DELTA, RUNS = 1e-5, 100_000


def lower_bound(plain, canary, trust=1e-3):
    """A lower bound on epsilon: the threshold is selected on one half, Clopper-Pearson bounds come
    from the other.
    """
    best, threshold = 0.0, 0.0
    for t in np.quantile(np.concatenate([plain[::2], canary[::2]]), np.linspace(0.01, 0.999, 200)):
        fpr, tpr = (plain[::2] > t).mean(), (canary[::2] > t).mean()
        if fpr > 1e-4 and (tpr - DELTA) / fpr > best:
            best, threshold = (tpr - DELTA) / fpr, t
    fp = int((plain[1::2] > threshold).sum())
    tp = int((canary[1::2] > threshold).sum())
    n = len(plain[1::2])
    high, low = stats.beta.ppf(1 - trust, fp + 1, n - fp), stats.beta.ppf(trust, tp, n - tp + 1)
    return math.log(max(low - DELTA, 1e-12) / high)


def observed(canary, sigma, key, q=1.0, C=0.7):
    """An attacker's view along the canary: the clipped sum with or without a full-norm gradient,
    with noise.
    """
    draw = stream(key, "audit", int(canary))
    present = draw.random(RUNS) < q if canary else np.zeros(RUNS, dtype=bool)
    return present * C + sigma * C * gaussian(RUNS, draw).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("q", [1.0, 0.3])
def test_an_attacker_gets_less_than_the_accountant_says(q):
    claimed = epsilon(privacy(accountant="prv"), {Event(1.0, q): 1})
    proven = lower_bound(observed(False, 1.0, 1, q), observed(True, 1.0, 2, q))
    assert 0.25 * claimed < proven <= claimed  # the attack works, and stays within the claim
    halved = lower_bound(observed(False, 0.4, 3, q), observed(True, 0.4, 4, q))
    assert halved > claimed  # and would catch noise that is too small


@pytest.mark.slow
def test_the_released_sums_are_those_of_the_claim(tmp_path):
    """Through the key store: 2,000 runs of one release of 50 numbers, a canary of full norm in the
    first of each pair.
    """
    store, C = KeyStore.open(tmp_path, 0, privacy()), 0.7
    zero = torch.zeros(50).double()
    canary = zero.clone()
    canary[0] = C
    releases = [
        [
            float(store.release(Draw(r, "training", 0, 10, 10), torch.zeros(1), s)[0])
            for r in range(2000)
        ]
        for s in (zero, canary)
    ]
    outside, inside = (np.asarray(s) for s in releases)
    assert stats.kstest(outside / C, "norm").pvalue > 1e-6
    assert stats.kstest((inside - C) / C, "norm").pvalue > 1e-6
    assert lower_bound(outside, inside) <= epsilon(privacy(accountant="prv"), {Event(1.0, 1.0): 1})


@pytest.mark.slow
def test_the_sampler_and_the_noise_at_a_million(tmp_path):
    z = gaussian(1_000_000, stream(7, "noise")).numpy()
    assert 2 * min(stats.chi2.cdf((z**2).sum(), len(z)), stats.chi2.sf((z**2).sum(), len(z))) > 1e-6
    sizes = [len(poisson(100, 0.1, stream(7, "sample", i))) for i in range(50_000)]
    assert abs(np.mean(sizes) - 10) < 5 * math.sqrt(9 / 50_000)
    assert abs(np.var(sizes) - 9) < 5 * 9 * math.sqrt(2 / 50_000) * 1.1
