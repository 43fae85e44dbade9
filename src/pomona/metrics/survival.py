"""Metrics of predicted survival with censored times, for many sample weightings at once.

Targets (n, 2) are times above 0 and events (1 observed, 0 censored: no event until then).
Predictions (n, K) are probabilities of surviving beyond K times. Events precede censorings
at the same time.

Metrics with inverse probability of censoring weights (``uno_c``, ``dynamic_auroc``,
``integrated_brier``) use the Kaplan-Meier estimate G of the censoring times of the same samples,
with the same weights: a client's test samples, or a resample of them. An event at T is seen if the
sample is not censored before T, so its weight is 1 / G(T-), with G just before T; survival of t is
seen if it is not censored by t, so its weight is 1 / G(t). Both differ only where events and
censorings share a time, as in whole years. There scikit-survival weights events by 1 / G(T), which
is too much; without such times it gives the same if it gets those samples twice.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.measures import auroc
from pomona.metrics.nan_safe import Array, divide, row_means, spans

_ZERO = 1e-9  # smaller probabilities are 0 up to rounding: otherwise G is at least 1 / n
_TINY = np.finfo(float).tiny


def risk(survival: Array) -> Array:
    """Return the sum of the cumulative hazards -log S at K times, from survival probabilities (n,
    K): (n,).

    Larger values mean an earlier expected event. At times that are quantiles of event times it is,
    up to a factor, the number of events expected under a sample's hazard ("ensemble mortality":
    Ishwaran et al., "Random survival forests", Annals of Applied Statistics 2008).
    """
    expected: Array = -np.log(np.maximum(survival, _TINY)).sum(axis=1)
    return expected


def kaplan_meier(
    targets: Array, weights: Array, times: Array, censoring: bool = False, left_limit: bool = False
) -> Array:
    """Return the product-limit estimate of the share without an event beyond each of the ``times``
    (K,): (R, K).

    Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 1958. With
    ``censoring``, of the share not censored; with ``left_limit``, just before each time.
    """
    order = np.argsort(targets[:, 0], kind="stable")
    (time, event), ordered = targets[order].T, weights[:, order]
    moments, first = np.unique(time, return_index=True)
    exits, events = (
        np.add.reduceat(values, first, axis=1) for values in (ordered, ordered * event)
    )
    exposed = np.cumsum(exits[:, ::-1], axis=1)[:, ::-1]
    hits, exposed = (exits - events, exposed - events) if censoring else (events, exposed)
    curve = np.cumprod(1 - np.nan_to_num(divide(hits, exposed)), axis=1)
    beyond: Array = np.pad(curve, ((0, 0), (1, 0)), constant_values=1.0)[
        :, np.searchsorted(moments, times, side="left" if left_limit else "right")
    ]
    return beyond


def c_index(survival: Array, targets: Array, weights: Array) -> Array:
    """Return the share of comparable pairs in which the earlier event has the larger ``risk``, with
    ties counting half.

    A pair is comparable if the sample with the earlier time had its event, or if both times are
    equal and only that one had an event. A pair's weight is the product of its samples' weights.
    Harrell et al., "Evaluating the yield of medical tests", JAMA 1982. NaN without a comparable
    pair.
    """
    return _concordance(risk(survival), targets, weights, weights)


def uno_c(survival: Array, targets: Array, weights: Array, tau: float = np.inf) -> Array:
    """Return ``c_index`` with pairs weighted by 1 / G(T-)^2 at their earlier time, to remove the
    effect of censoring.

    Pairs whose earlier time is ``tau`` or later do not count. By default all do: tau is then the
    end of the samples' observation, beyond which no event can be seen, and G(T-) > 0 at each event
    before.

    Uno et al., "On the C-statistics for evaluating overall adequacy of risk prediction procedures
    with censored survival data", Statistics in Medicine 2011.
    """
    return _concordance(
        risk(survival),
        targets,
        weights,
        weights * _event_weights(targets, weights) ** 2 * (targets[:, 0] < tau),
    )


def dynamic_auroc(survival: Array, targets: Array, weights: Array, times: Array) -> Array:
    """Return the mean over times t of the AUROC of 1 - S(t), for events by t against samples known
    to survive t.

    Cases by t are weighted by 1 / G(T-) (Uno et al., JASA 2007); times by the number of events
    since the previous time (Lambert and Chevret, "Summary measure of discrimination in survival
    models based on cumulative/dynamic time-dependent ROC curves", Statistical Methods in Medical
    Research 2014). Of ``times``, only those within the samples' times are used.
    """
    time, event = targets[:, 0], targets[:, 1] > 0
    within = _within(time, times)
    if not within.any():
        return np.full(len(weights), np.nan)
    cases = weights * _event_weights(targets, weights)
    areas = []
    for k in np.flatnonzero(within):
        case = event & (time <= times[k])
        usable = case | (time > times[k])
        counted = np.where(case, cases, weights)[:, usable]
        areas.append(auroc(1 - survival[usable, k], case[usable], counted))
    fallen = -np.diff(kaplan_meier(targets, weights, times[within]), axis=1, prepend=1.0)
    return row_means(np.stack(areas, axis=1), fallen)


def integrated_brier(survival: Array, targets: Array, weights: Array, times: Array) -> Array:
    """Return the squared distance of S(t) from the event-free status at t, averaged over samples
    and time.

    Time is from the first to the last of ``times`` within the samples' times (trapezoids);
    undefined for fewer than two, or without events. Samples with an event by t are weighted by 1 /
    G(T-), those that survive t by 1 / G(t); the weights sum to the number of samples. Graf et al.,
    "Assessment and comparison of prognostic classification schemes for survival data", Statistics
    in Medicine 1999.
    """
    time, event = targets[:, 0], targets[:, 1] > 0
    times, survival = (values[..., _within(time, times)] for values in (times, survival))
    had_event = event[:, np.newaxis] & (time[:, np.newaxis] <= times)
    surviving = time[:, np.newaxis] > times
    cases = weights * _event_weights(targets, weights)
    survivor_weights = _inverse(kaplan_meier(targets, weights, times, censoring=True))
    losses = cases @ (survival**2 * had_event) + survivor_weights * (
        weights @ ((1 - survival) ** 2 * surviving)
    )
    scores = np.where(
        weights @ surviving > 0, divide(losses, weights.sum(axis=1, keepdims=True)), np.nan
    )
    pieces = (scores[:, 1:] + scores[:, :-1]) / 2
    mean = row_means(pieces, np.diff(times))
    return np.where(weights @ event > 0, mean, np.nan)


def surprise(survival: Array, targets: Array, times: Array) -> Array:
    """Return -log of the probability of each observation: (n,).

    An observation is an event in an interval between two times, or survival of the times that were
    passed without one.
    """
    padded = np.pad(survival, ((0, 0), (1, 0)), constant_values=1.0)
    passed, in_interval = passages(targets, times)
    rows = np.arange(len(targets))
    chance = padded[rows, passed] - np.where(
        in_interval, padded[rows, np.minimum(passed + 1, len(times))], 0.0
    )
    lost: Array = -np.log(np.maximum(chance, _TINY))
    return lost


def passages(targets: NDArray[Any], times: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how many of the ``times`` (K,) each sample survived, and whether its event fell before
    the next: (n,) each.

    A time is the end of its interval: an event at that time falls within it.
    """
    time, event = np.asarray(targets[:, 0], dtype=float), targets[:, 1] > 0
    passed = np.where(
        event, np.searchsorted(times, time, side="left"), np.searchsorted(times, time, side="right")
    )
    return passed, event & (passed < len(times))


def _concordance(risks: Array, targets: Array, weights: Array, firsts: Array) -> Array:
    """Return the concordance; a pair's weight is that (R, n) of its later sample times that of its
    first.
    """
    time, event = targets[:, 0], targets[:, 1] > 0
    right, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    early = np.flatnonzero(event)
    for span in spans(len(early), len(time)):
        rows = early[span.start : span.stop]
        early_time, early_risk = time[rows, np.newaxis], risks[rows, np.newaxis]
        comparable = (early_time < time) | ((early_time == time) & ~event)
        ordered = comparable * ((early_risk > risks) + (early_risk == risks) / 2)
        right += ((weights @ ordered.T) * firsts[:, rows]).sum(axis=1)
        pairs += ((weights @ comparable.T) * firsts[:, rows]).sum(axis=1)
    return divide(right, pairs)


def _event_weights(targets: Array, weights: Array) -> Array:
    """Return 1 / G just before each sample's time (R, n)."""
    return _inverse(kaplan_meier(targets, weights, targets[:, 0], censoring=True, left_limit=True))


def _inverse(share: Array) -> Array:
    """Return 1 / share, 0 where that is 0."""
    return np.nan_to_num(divide(1.0, np.where(share > _ZERO, share, 0.0)))


def _within(time: Array, times: Array) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = (times >= time.min()) & (times < time.max())
    return within
