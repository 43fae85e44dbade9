"""Membership inference: was a record among those that a client trained on?

Scores are (M, R), of R records in each of M runs of one federation that differ in who was trained
on. Each run is attacked in turn, with all others as the attacker's own runs.
"""

import numpy as np

from pomona.audit.roc import Mask
from pomona.metrics.nan_safe import Array

MIN_LOSS, MAX_LOSS = 1e-7, 50.0  # losses in float32 end there
FLOOR = 1e-12  # of a variance, where all runs agree


def confidence(losses: Array) -> Array:
    """Return -ln(e^l - 1) of losses l: of a cross-entropy ln(p / (1 - p)), nearly normal.

    Carlini et al. ("Membership inference attacks from first principles", IEEE S&P 2022, section
    IV-C). Of other losses it is as well a falling function.
    """
    loss = np.clip(losses, MIN_LOSS, MAX_LOSS)
    return np.asarray(-loss - np.log(-np.expm1(-loss)))


def threshold(confidences: Array, member: Mask) -> Array:
    """Return scores of the simplest attack: members have low losses (Yeom et al., CSF 2018)."""
    return confidences


def lira(confidences: Array, member: Mask) -> Array:
    """Return log likelihood ratios of confidences (M, R): with the record over without it.

    The online attack of Carlini et al. (2022, algorithm 1), with one variance for all records, as
    they advise for few runs. NaN where no other run has the record, or none lacks it.
    """
    inside, outside = (
        _likelihood(confidences, mask & ~np.isnan(confidences)) for mask in (member, ~member)
    )
    return inside - outside


def _likelihood(confidences: Array, chosen: Mask) -> Array:
    """Return the log likelihood (M, R) of each value given the other chosen ones, without
    constants.
    """
    variance = _variance(confidences, chosen)
    return np.asarray(
        -((confidences - _leave_one_out_means(confidences, chosen)) ** 2) / (2 * variance)
        - np.log(variance) / 2
    )


def _leave_one_out_means(confidences: Array, chosen: Mask) -> Array:
    """Return (M, R) the mean of a record's values over the other chosen runs; NaN for none."""
    values = np.where(chosen, confidences, 0.0)
    sums, counts = values.sum(0) - values, chosen.sum(0) - chosen
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _variance(confidences: Array, chosen: Mask) -> float:
    """Return the variance within records, over all of them."""
    counts = chosen.sum(0)
    means = np.where(chosen, confidences, 0.0).sum(0) / np.maximum(counts, 1)
    squares = np.where(chosen, (confidences - means) ** 2, 0.0).sum()
    return max(float(squares) / max(int((counts - 1).clip(min=0).sum()), 1), FLOOR)


def differences(messages: Array, member: Mask) -> Array:
    """Return scores (M, R) of messages (M, D) of any meaning: how far a run's message goes towards
    those of other runs with the record, from those without.

    The optimal linear test if all numbers vary alike; they are scaled to do so. It needs products
    of messages only, so that D may be large.
    """
    scale = messages.std(0)
    unit = (messages - messages.mean(0)) / np.where(scale > 0, scale, 1.0)
    products = unit @ unit.T  # (M, M)
    np.fill_diagonal(products, 0.0)  # a run is not compared with itself
    totals = products.sum(1, keepdims=True)
    with_record, n_with = products @ member, member.sum(0) - member
    n_without = len(messages) - 1 - n_with
    means = with_record / np.maximum(n_with, 1) - (totals - with_record) / np.maximum(n_without, 1)
    return np.where((n_with > 0) & (n_without > 0), means, np.nan)


ATTACKS = {"threshold": threshold, "lira": lira}
"""Attacks on models, by name."""
