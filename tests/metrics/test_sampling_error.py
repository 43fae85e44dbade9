"""What a comparison could have shown, against SciPy's noncentral t, and by drawing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pomona.metrics.influence import of_mean
from pomona.metrics.intervals import mean_difference
from pomona.metrics.sampling_error import POWER, SamplingError
from pomona.record.paired_gain import Gain, jointly

ERRORS = st.lists(st.tuples(st.floats(1e-8, 10), st.floats(2, 1e4)), min_size=1, max_size=2).map(
    lambda variances: SamplingError(tuple(variances))
)


@pytest.mark.parametrize("n", [10, 30, 200])
@pytest.mark.parametrize("comparisons", [1, 12])
def test_the_detectable_gain_has_80_percent_power_by_the_noncentral_t(n, comparisons):
    differences = stats.norm.rvs(size=n, random_state=n)
    error = mean_difference([of_mean(differences, np.zeros(n))]).error
    standard_error = differences.std(ddof=1) / math.sqrt(n)
    limit = stats.t.ppf(1 - 0.025 / comparisons, n - 1)
    power = stats.nct.sf(limit, n - 1, error.detectable(comparisons) / standard_error)
    assert power == pytest.approx(POWER, abs=0.04)


def test_with_the_needed_samples_the_margin_is_what_is_detectable():
    n, rng = 100, np.random.default_rng(0)
    draw = rng.normal(size=n)
    error = mean_difference([of_mean(draw, np.zeros(n))]).error
    needed = error.factor(0.1)
    # so many copies of the sample have nearly its variance, and that many more degrees of freedom
    copies = np.tile(draw, round(needed))
    assert mean_difference([of_mean(copies, 0 * copies)]).error.detectable() == pytest.approx(
        0.1, rel=0.04
    )


def test_equal_answers_do_not_make_every_gain_detectable():
    """Of 200 right or wrong answers, six must differ for a sign test, with 80 % probability: the
    count of a Poisson variable of mean 8.1.
    """
    answers = np.ones(200)
    error = mean_difference([of_mean(answers, answers, step=1.0)]).error
    expected = error.detectable() * 200
    assert stats.poisson.sf(5, expected) == pytest.approx(POWER, abs=0.03)


def test_seeds_that_differ_too_much_need_more_seeds():
    assert SamplingError(((1e-4, 99.0), (0.5, 2.0))).factor(0.01) is None


@given(ERRORS, st.floats(1e-3, 1), st.integers(1, 50))
def test_more_samples_and_fewer_comparisons_show_smaller_gains(error, difference, comparisons):
    assert error.detectable(comparisons) <= error.detectable(comparisons + 1) * (1 + 1e-9)
    factor = error.factor(difference, comparisons)
    if factor is not None:
        assert (factor <= 1.001) == (error.detectable(comparisons) <= difference * 1.001) or (
            factor == pytest.approx(1, rel=0.01)
        )


@given(ERRORS, st.floats(-1, 1))
def test_a_loss_of_the_margin_is_ruled_out_where_the_interval_excludes_it(error, value):
    gain = Gain(value, None, None, 10, error=error, margin=0.02)
    half_width = _half_width(error)
    assert (gain.p_not_worse < 0.05 - 1e-9) <= (value - half_width > -0.02 - 1e-9)
    assert (gain.p_not_worse > 0.05 + 1e-9) <= (value - half_width < -0.02 + 1e-9)


def _half_width(error):
    return math.hypot(
        *(stats.t.ppf(0.975, df) * math.sqrt(variance) for variance, df in error.variances)
    )


def test_verdicts_of_one_gain_and_of_several():
    """Standard errors of 0.01 with many degrees of freedom: an interval of 0.0196 on each side."""

    def gain(value, margin=0.02):
        error = SamplingError(((1e-4, 1e6),))
        p = 2 * stats.norm.sf(abs(value) / 0.01)
        return Gain(value, value - 0.0196, value + 0.0196, 99, p=p, error=error, margin=margin)

    values = (0.03, 0.01, -0.005, -0.03)
    assert [gain(v).verdict for v in values] == ["better", "not worse", "cannot tell", "worse"]
    assert gain(0.01, None).verdict == "cannot tell"
    # of two, 0.01 above minus the margin by three standard errors holds, by two it does not
    assert jointly([gain(0.01), gain(0.01)]) == ["not worse", "not worse"]
    assert jointly([gain(0.0005)]) == ["not worse"]
    assert jointly([gain(0.0005), gain(0.0005)]) == ["cannot tell", "cannot tell"]
