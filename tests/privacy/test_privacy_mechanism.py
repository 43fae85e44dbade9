"""Clipping, sensitivity, sampling and noise, against Opacus, closed forms and two-sided tests."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from private_problem import privacy, problem
from scipy import stats
from torch.testing import assert_close

from pomona.core.rng import stream
from pomona.privacy.accounting import rate, steps
from pomona.privacy.ledger import Draw
from pomona.privacy.noise import KeyStore, clipped, gaussian, poisson


def test_clipped_sums_equal_opacus_on_the_same_batch(tmp_path):
    from opacus import GradSampleModule

    p, index = problem(tmp_path / "opacus", privacy()), torch.arange(12)
    wrapped = GradSampleModule(p.module, loss_reduction="sum")
    x, y = p.objective.data.gather(index)
    x.requires_grad_()  # or Opacus' hooks warn
    torch.nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    samples = {k.removeprefix("_module."): v.grad_sample for k, v in wrapped.named_parameters()}
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples.values()]).norm(dim=0)
    C = float(norms.median())  # half of the samples are clipped
    factors = (C / (norms + 1e-6)).clamp(max=1)
    assert 0 < int((factors < 1).sum()) < 12
    _, total = problem(tmp_path, privacy(max_grad_norm=C)).objective.clipped_sum(p.row, index)
    for entry in p.space.parameters:
        expected = torch.einsum("b,b...->...", factors, samples[entry.name])
        assert_close(entry.view(total).float(), expected, atol=1e-6, rtol=1e-5)


@given(
    st.sampled_from(["mlp", "logistic"]),
    st.integers(0, 50),
    st.integers(1, 8),
    st.sampled_from([1e-3, 0.3, 5.0]),
    st.integers(0, 2),
)
@settings(max_examples=25)
def test_removing_any_sample_moves_the_sum_by_at_most_the_norm(
    tmp_path_factory, model, seed, size, C, scale
):
    p = problem(tmp_path_factory.mktemp("p"), privacy(max_grad_norm=C), (size,), seed, model)
    row = p.row * 10.0**scale
    _, total = p.objective.clipped_sum(row, torch.arange(size))
    for removed in range(size):
        _, remaining_sum = p.objective.clipped_sum(
            row, torch.tensor([i for i in range(size) if i != removed], dtype=torch.long)
        )
        assert float((total - remaining_sum).norm()) <= C


@given(st.floats(-6, 38.5), st.floats(-6, 2), st.integers(0, 50), st.integers(1, 40))
def test_no_sample_passes_the_clipping_norm_however_large_its_gradient(size, norm, seed, d):
    """C / 10^38 is subnormal in float32: its rounding alone would let more than C through."""
    P = torch.from_numpy(stream(seed, "large").normal(size=(5, d)) * 10.0**size).float()
    C = 10.0**norm
    norms = torch.linalg.vector_norm(clipped(P, C), dim=1)
    assert (norms <= C).all()
    lengths = torch.linalg.vector_norm(P, dim=1, dtype=torch.float64)
    assert_close(norms, torch.where(lengths.isfinite(), lengths.clamp(max=C), 0), rtol=1e-5, atol=0)


def test_chunks_do_not_change_the_sum(tmp_path):
    sums = [
        problem(tmp_path / str(chunk), privacy(), (17,), chunk=chunk).objective.clipped_sum(
            problem(tmp_path / str(chunk), privacy(), (17,)).row, torch.arange(17)
        )
        for chunk in (1, 2, 5, 17, 64)
    ]
    for loss, total in sums[1:]:
        assert_close(total, sums[0][1], atol=1e-7, rtol=1e-6)
        assert_close(loss, sums[0][0])


def test_a_sample_that_overflows_counts_for_nothing():
    P = torch.tensor([[3.0, 4.0], [float("nan"), 1.0], [float("inf"), 0.0], [0.3, 0.4]])
    got = clipped(P, 1.0)
    expected = torch.tensor([[0.6, 0.8], [0, 0], [0, 0], [0.3, 0.4]], dtype=torch.float64)
    assert_close(got, expected, atol=1e-6, rtol=0)
    assert float(got[0].norm()) < 1


@pytest.mark.parametrize(
    ("n", "size", "share", "count"), [(10, 4, 1, 3), (8, 4, 1, 2), (0, 4, 1, 0), (10, 4, 0.4, 1)]
)
def test_steps_are_those_of_an_ordinary_pass(n, size, share, count):
    assert steps(n, size, share) == count


def test_poisson_sampling_is_independent_with_the_same_chance_for_everybody():
    n, size, T = 40, 10, 4000
    hits = np.zeros((T, n))
    for step in range(T):
        hits[step, poisson(n, rate(n, size), stream(1, "sample", 1, step))] = 1
    q = rate(n, size)
    assert q == 0.25
    expected = T * q * (1 - q)
    # each sample Binomial(T, q)
    assert stats.chi2.sf(((hits.sum(0) - T * q) ** 2).sum() / expected, n) > 1e-6
    counts = np.bincount(hits.sum(1).astype(int), minlength=n + 1)
    chances = stats.binom.pmf(np.arange(n + 1), n, q)
    frequent = chances * T > 5
    observed = np.append(counts[frequent], counts[~frequent].sum())
    binomial = np.append(chances[frequent], chances[~frequent].sum()) * T
    # batch sizes Binomial(n, q); fixed batches fail
    assert stats.chisquare(observed, binomial).pvalue > 1e-6
    pairs = np.corrcoef(hits.T)[np.triu_indices(n, 1)]
    assert np.abs(pairs).max() * np.sqrt(T) < 5.5


def noise(folder, count, settings_, client=0, rounds=range(1, 11)):
    """A key store's noise on a sum of zeros, in units of sigma C."""
    store = KeyStore.open(folder, client, settings_)
    zero = torch.zeros(count // len(rounds), dtype=torch.float64)
    scale = settings_.noise_multiplier * settings_.max_grad_norm
    return (
        torch.cat(
            [store.release(Draw(r, "training", 0, 10, 5), torch.zeros(1), zero) for r in rounds]
        )
        / scale
    )


def test_the_noise_has_the_right_scale_shape_and_no_memory(tmp_path):
    """400,000 numbers: an error of 1 % in sigma moves sum z^2 by 2 * 1 % * n = 8,000, that is 9 of
    its sd sqrt(2 n).
    """
    n = 400_000
    z = noise(tmp_path, n, privacy(noise_multiplier=1.7, max_grad_norm=0.3)).numpy()

    def p(values):
        return 2 * min(stats.chi2.cdf((values**2).sum(), n), stats.chi2.sf((values**2).sum(), n))

    assert p(z) > 1e-6
    assert p(z * 1.01) < 1e-6
    assert p(z * 0.99) < 1e-6
    assert stats.kstest(z[:100_000], "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(z)) / np.sqrt(24 / n) < 5
    rounds_ = z.reshape(10, -1)
    across = np.corrcoef(rounds_)[np.triu_indices(10, 1)]
    assert np.abs(across).max() * np.sqrt(n / 10) < 5
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) * np.sqrt(n) < 5
    assert len(np.unique(z)) == n


def test_two_clients_and_two_keys_share_no_noise(tmp_path):
    secret = privacy(seed=None)
    a, b = noise(tmp_path / "x", 1000, secret), noise(tmp_path / "x", 1000, secret, client=1)
    c = noise(tmp_path / "y", 1000, secret)
    assert not set(a.tolist()) & set(b.tolist())
    assert not set(a.tolist()) & set(c.tolist())
    assert not torch.equal(
        noise(tmp_path / "t", 1000, privacy()), noise(tmp_path / "t", 1000, privacy(), client=1)
    )


def test_noise_after_a_restart_is_new_for_new_releases_and_old_for_old_ones(tmp_path):
    secret = privacy(seed=None)
    first = noise(tmp_path, 1000, secret, rounds=range(1, 11))
    repeated = noise(tmp_path, 1000, secret, rounds=range(1, 11))
    later = noise(tmp_path, 1000, secret, rounds=range(11, 21))
    assert torch.equal(first, repeated)
    assert not set(first.tolist()) & set(later.tolist())


def test_another_question_about_the_same_batch_gets_other_noise(tmp_path):
    """Whoever makes a client repeat a round with another model must not be able to subtract the
    noise.
    """
    store = KeyStore.open(tmp_path, 0, privacy())
    draw = Draw(1, "training", 0, 10, 5)
    zero = torch.zeros(50).double()
    first, second = (store.release(draw, torch.full((3,), w), zero) for w in (0.0, 1.0))
    other_data = store.release(draw, torch.zeros(3), zero + 1e-9)
    assert not set(first.tolist()) & set(second.tolist())
    assert not torch.equal((first - other_data).abs() < 1e-6, torch.ones(50, dtype=torch.bool))
    assert store.position().entries == 3


def test_sums_of_four_draws_have_unit_variance():
    z = gaussian(400_000, stream(0, "noise"))
    assert abs(float(z.var()) - 1) < 5 * np.sqrt(2 / 400_000)
