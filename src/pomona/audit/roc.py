"""What an attack's scores show: AUC, hits at few false alarms, and the epsilon that they prove.

A pair is a record in an audited run; its score is higher if the attack takes the record for a
member.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm
from sklearn.metrics import roc_curve

from pomona.metrics.nan_safe import Array

TRUST = 0.95
RULE_OF_THREE = 3  # n misses of n show at 95 % only that a share is below 3 / n
Mask = NDArray[np.bool_]


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """Scores of pairs (n,), whether the record was trained on (n,), and its number (n,)."""

    score: Array
    member: Mask
    record: NDArray[np.int64]

    @classmethod
    def flatten(cls, score: Array, member: Mask) -> "Pairs":
        """Return the pairs of scores (M, R) by run and record that are not NaN."""
        defined = ~np.isnan(score)
        record = np.broadcast_to(np.arange(score.shape[1]), score.shape)
        return cls(score[defined], member[defined], record[defined])

    @property
    def comparable(self) -> bool:
        """Whether there are members and others."""
        return bool(self.member.any() and not self.member.all())


def clopper_pearson(
    hits: int | NDArray[np.int64], n: int, trust: float = TRUST
) -> tuple[Array, Array]:
    """Return the exact interval of a probability from hits of n independent trials.

    Clopper and Pearson, Biometrika 1934. Each end holds at (1 + trust) / 2.
    """
    k, tail = np.asarray(hits), (1 - trust) / 2
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    return low, high


def auc(pairs: Pairs) -> Estimate:
    """Return the area under the ROC curve: how often a member scores above another record.

    The interval is that of DeLong et al. (Biometrics 1988) for clustered data: the scores of one
    record in several runs belong together (Obuchowski, Biometrics 1997). Where all pairs are
    separated, or all tied, the variance is 0: then it is Clopper and Pearson's, for as many pairs
    as can be formed without using a record twice. Both sides must have scores.
    """
    above = _placements(pairs.score[pairs.member], pairs.score[~pairs.member])
    below = 1 - _placements(pairs.score[~pairs.member], pairs.score[pairs.member])
    area = float(above.mean())
    m, n = len(above), len(below)
    sums = [
        _sums(pairs.record[pairs.member], above - area, pairs.record),
        _sums(pairs.record[~pairs.member], below - area, pairs.record),
    ]
    (s10, s01), s11 = (_spread(cluster, cluster) for cluster in sums), _spread(*sums)
    variance = max(s10 / m + s01 / n + 2 * s11 / (m * n), 0.0)
    if variance == 0:
        trained, untrained = (cluster[:, 1] > 0 for cluster in sums)
        pairs_apart = min(trained.sum(), untrained.sum(), (trained | untrained).sum() // 2)
        return Estimate(
            area, *map(float, clopper_pearson(round(area * pairs_apart), int(pairs_apart)))
        )
    margin = float(norm.ppf((1 + TRUST) / 2)) * variance**0.5
    return Estimate(area, max(area - margin, 0.0), min(area + margin, 1.0))


def _placements(scores: Array, references: Array) -> Array:
    """Return the share of others below each score, equal ones by half."""
    ordered = np.sort(references)
    return (
        np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    ) / (2 * len(ordered))


def _sums(record: NDArray[np.int64], values: Array, all_records: NDArray[np.int64]) -> Array:
    """Return sums of values by record, (K, 2): the sum, and how many it has."""
    size = int(all_records.max()) + 1
    return np.stack([np.bincount(record, values, size), np.bincount(record, minlength=size)], 1)


def _spread(left: Array, right: Array) -> float:
    """Return Obuchowski's S: the clusters' mean product, by those that have any."""
    sums, same_side = left[:, 0] @ right[:, 0], left is right
    clusters = int((left[:, 1] > 0).sum()) if same_side else int(((left + right)[:, 1] > 0).sum())
    scale = clusters / max(clusters - 1, 1)
    return float(scale * sums / (left[:, 1].sum() if same_side else 1))


def hits_at(pairs: Pairs, false_alarms: float) -> float | None:
    """Return the share of members found at this share of false alarms or fewer.

    None if there are fewer than 3 / ``false_alarms`` records that were not trained on: no such
    sample can show so low a share. It has no interval, as the threshold is of the same pairs.
    """
    n = len(np.unique(pairs.record[~pairs.member]))
    if not pairs.comparable or n * false_alarms < RULE_OF_THREE:
        return None
    fpr, tpr, _ = roc_curve(pairs.member, pairs.score, drop_intermediate=False)
    return float(tpr[fpr <= false_alarms].max())


def curve(pairs: Pairs) -> tuple[Array, Array]:
    """Return false alarms and hits (k,) at each threshold, both rising from 0 to 1."""
    fpr, tpr, _ = roc_curve(pairs.member, pairs.score)
    return fpr, tpr


def least_epsilon(
    attacks: Sequence[Array], member: Mask, delta: float, trust: float = TRUST
) -> float:
    """Return a lower bound on epsilon, at ``trust``, that attacks' scores (M, R) of M runs prove.

    Under (epsilon, delta) differential privacy TPR <= exp(epsilon) FPR + delta, and the same of the
    records taken for others (Kairouz, Oh, Viswanath, ICML 2015). Attack, threshold and side are
    chosen on the first half of the runs, the bound comes from the second, with Clopper-Pearson ends
    (Jagielski et al., NeurIPS 2020; Nasr et al., IEEE S&P 2021): that the best of many was chosen
    does not raise it. Pairs count as independent: a record's membership is drawn anew for each run.
    """
    middle = len(member) // 2
    best, proven = -np.inf, 0.0
    for score in attacks:
        choice, judge = (
            Pairs.flatten(score[p], member[p]) for p in (slice(middle), slice(middle, None))
        )
        if not (choice.comparable and judge.comparable):
            continue
        steps = np.unique(np.quantile(choice.score, np.linspace(0, 1, 400)))
        bounds = _proven(choice, steps, delta, trust)
        if bounds.max() > best:
            best = float(bounds.max())
            side, column = np.unravel_index(int(bounds.argmax()), bounds.shape)
            proven = float(_proven(judge, steps[[column]], delta, trust)[side, 0])
    return max(proven, 0.0)


def _proven(pairs: Pairs, thresholds: Array, delta: float, trust: float) -> Array:
    """Return the bound (2, k) at each threshold: from those at or above, and from those below."""
    ins, outs = np.sort(pairs.score[pairs.member]), np.sort(pairs.score[~pairs.member])
    ins_below, outs_below = (
        np.searchsorted(ordered, thresholds, "left") for ordered in (ins, outs)
    )
    m, n = len(ins), len(outs)
    sides = [((m - ins_below), m, (n - outs_below), n), (outs_below, n, ins_below, m)]
    bounds = []
    for hits, positives, alarms, negatives in sides:
        low = clopper_pearson(hits, positives, trust)[0]
        high = clopper_pearson(alarms, negatives, trust)[1]
        bounds.append(np.log(np.maximum(low - delta, 1e-12)) - np.log(high))
    return np.stack(bounds)
