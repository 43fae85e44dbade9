"""Gain of a run over another on the same test samples, with paired intervals and a verdict
(docs/statistics.md).

Both runs predict the same samples, so that the difficulty of a sample cancels out. The clients are
fixed, not a sample of others: an interval over clients is the uncertainty of their mean gain over
test samples, and does not predict the gain of another federation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed, titled
from pomona.metrics.auroc_intervals import Components, difference_margins
from pomona.metrics.client_statistics import holm
from pomona.metrics.influence import EQUAL, Evidence, of_function, of_mean, over_seeds
from pomona.metrics.intervals import mean_difference
from pomona.metrics.metric import ACCURACY, LOSS, Metric
from pomona.metrics.nan_safe import Array, exact
from pomona.metrics.sampling_error import LEVEL, SamplingError, VerdictSettings
from pomona.record.headline import HeadlineModel
from pomona.record.predictions import Answers
from pomona.record.result import Result
from pomona.tasks import Task, task_of

Verdict = Literal["better", "not worse", "cannot tell", "worse"]
"""Of an interval: above 0; not all above 0, but above minus the margin; none of these; below 0."""
UNDECIDED: tuple[Verdict, ...] = ("not worse", "cannot tell")
"""Verdicts without a significant difference."""
ONE_PARTITION = (
    "give all seeds one partition (“pomona data show --save cut.json KEY=VALUE...”, then "
    "partition.name=file partition.path=cut.json)"
)
"""The remedy where each seed has other test samples."""


@dataclass(frozen=True)
class ExcludedClient:
    """A client that is excluded from a mean gain, because its samples do not define the metric, are
    too few, or are not on record in both runs.

    Attributes:
        client: its number.
        rows: its test samples; 0 if none are on record.
        events: those with the rarer answer, or with an observed event; None if not applicable.
    """

    client: int
    rows: int
    events: int | None


@dataclass(frozen=True)
class Gain:
    """A difference in a metric; positive is better.

    Attributes:
        value: over all samples, in the unit of the metric; for accuracies, 0.01 is a percentage
            point.
        low, high: 95 % interval; both None if there are too few samples.
        pairs: independent units that both runs predicted: test samples, or groups of them
            (patients) if known.
        rows: test samples that both runs predicted.
        events: those with the rarer answer, or with an observed event; None if not applicable.
        p: two-sided p-value of no difference; None without an interval.
        clients: number of clients in the gain.
        seeds: number of seeds in the mean.
        excluded: clients excluded from a mean, in id order; empty for one client's gain.
        client: the name of the client whose gain it is; empty for a mean.
        model, base_model: the compared models of the two runs, by name, stage and rounds, on test
            samples; empty if unknown.
        error: of the gain by chance; None without an interval.
        margin: a loss smaller than this is not called one (``verdict.margin``); None for a metric
            that is not a share.
    """

    value: float
    low: float | None
    high: float | None
    pairs: int
    rows: int = 0
    events: int | None = None
    p: float | None = None
    clients: int = 1
    seeds: int = 1
    excluded: tuple[ExcludedClient, ...] = ()
    client: str = ""
    model: str = ""
    base_model: str = ""
    error: SamplingError | None = None
    margin: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval; None if there are too few samples."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def verdict(self) -> Verdict:
        """Verdict supported by the interval."""
        low, high = self.interval or (-inf, inf)
        if not low <= 0 <= high:
            return "better" if low > 0 else "worse"
        return "not worse" if self.margin is not None and low > -self.margin else "cannot tell"

    @property
    def p_not_worse(self) -> float | None:
        """The p-value of a loss of at least the margin, two-sided as ``p``; None without interval
        or margin.
        """
        if self.error is None or self.margin is None:
            return None
        return self.error.above(self.value + self.margin)

    @property
    def p_fails(self) -> float | None:
        """The p-value of a loss of at most the margin (of no loss without one), two-sided as ``p``;
        None without interval.
        """
        if self.error is None or self.p is None:
            return None
        return max(self.p, self.error.above(-self.value - (self.margin or 0.0)))


def gains(
    run: Result | Sequence[Result], base: Result | Sequence[Result]
) -> tuple[list[Gain | None], Gain | None]:
    """Return a run's gains over another in its metric: one per client in id order, and their mean.

    For sequences of runs, one per seed in the same order, gains are means over seeds, and intervals
    include the variation over samples and seeds.

    >>> import pomona
    >>> shared = {"clients": 3, "rounds": 1, "lr": 0.1}
    >>> methods = ("fedavg-ft", "separate")
    >>> run, local = (pomona.run(pomona.Config(method=m, **shared)) for m in methods)
    >>> clients, mean = pomona.gains(run, local)
    >>> len(clients), mean.low <= mean.value <= mean.high, mean.verdict, mean.excluded
    (3, True, '...', ())
    >>> [gain.client for gain in clients]
    ['client 0', 'client 1', 'client 2']

    A client's gain is None if undefined: no test samples, no predictions on record, different
    samples in the two runs (other targets, or other rows of the same data), or samples that do not
    define the metric. The mean is over the other clients, except those with too few samples; it
    lists all excluded clients. For the metric ``loss``, all gains are None if the loss is a user's
    own or the targets are numbers, since predictions do not determine it (use ``mse``).

    Raises:
        ConfigError: the sequences are empty or differ in length, their clients are not the same, or
            their seeds have different test samples.
        DataError: a file of predictions is damaged.
    """
    runs, bases = _each_seed(run), _each_seed(base)
    if not runs or len(runs) != len(bases):
        raise ConfigError(
            f"{len(runs)} runs against {len(bases)}; give two runs of each seed, one on either side"
        )
    first = runs[0]
    task, names = _task(first), first.about["clients"]
    n = len(names)
    _require_clients(names, [*runs, *bases])
    if not determined(first.metric, task, (*runs, *bases)):
        return [None] * n, None
    by_client = [_of_client(first.metric, task, runs, bases, client) for client in range(n)]
    model, base_model = (str(HeadlineModel.of_runs(side) or "") for side in (runs, bases))
    common: dict[str, Any] = {"model": model, "base_model": base_model, "margin": _margin(first)}
    widest = first.metric.high - first.metric.low
    clients = [
        replace(_within(_gain([outcome]), widest), client=name, **common)
        if isinstance(outcome, Evidence)
        else None
        for name, outcome in zip(names, by_client, strict=True)
    ]
    mean = mean_gain(first, dict(enumerate(by_client)))
    return clients, mean and replace(mean, **common)


def mean_gain(
    run: Result, by_client: Mapping[int, Evidence | ExcludedClient | None]
) -> Gain | None:
    """Return the mean gain in a run's metric over the clients with evidence, in id order; None if
    there are none.
    """
    defined = {i: outcome for i, outcome in by_client.items() if isinstance(outcome, Evidence)}
    undefined = [outcome for outcome in by_client.values() if isinstance(outcome, ExcludedClient)]
    if not defined:
        return None
    mean = _gain(list(defined.values()), list(defined), undefined)
    return replace(_within(mean, run.metric.high - run.metric.low), margin=_margin(run))


def _within(gain: Gain, widest: float) -> Gain:
    """Limit an interval to the differences that the metric's range allows."""
    if gain.low is None or gain.high is None:
        return gain
    return replace(gain, low=max(gain.low, -widest), high=min(gain.high, widest))


def _margin(run: Result) -> float | None:
    """Return the margin of a run's verdicts; None if its metric is not a share."""
    if not run.metric.is_share:
        return None
    settings = run.config.get("verdict") or {}
    return float(settings.get("margin", VerdictSettings().margin))


def _require_clients(names: Sequence[str], runs: Sequence[Result]) -> None:
    """Raise ConfigError for runs of other clients, between which there is no gain."""
    for run in runs:
        clients = run.about["clients"]
        if list(clients) != list(names):
            raise ConfigError(
                f"the runs have different clients, {listed(names)} ({len(names)}) and "
                f"{listed(clients)} ({len(clients)}), so there is no gain; give runs over the same "
                "data and partition"
            )


def _each_seed(runs: Result | Sequence[Result]) -> list[Result]:
    return [runs] if isinstance(runs, Result) else [*runs]


def determined(metric: Metric, task: Task, runs: Sequence[Result]) -> bool:
    """Return whether predictions determine the metric.

    They do not determine a loss of the user's own, nor one in the network's units.
    """
    minimised = all(map(_standard, runs)) and not task.standardised
    return metric.name in task.measures and (metric != LOSS or minimised)


def jointly(gains: Sequence[Gain | None], comparisons: int = 0) -> list[Verdict | None]:
    """Return verdicts of many clients, or of several runs, that hold jointly at 95 %: Holm's
    correction of their p-values.

    Of 65 clients with equal models, about three are called better or worse by their individual
    intervals. ``comparisons``: number from which these were chosen by their results; the
    others count with p = 1.
    """
    p = adjusted([gain.p if gain else None for gain in gains], comparisons)
    p_not_worse = adjusted([gain.p_not_worse if gain else None for gain in gains], comparisons)
    undecided: list[Verdict] = ["not worse" if q <= LEVEL else "cannot tell" for q in p_not_worse]
    return [
        None if gain is None else gain.verdict if p[i] <= LEVEL else undecided[i]
        for i, gain in enumerate(gains)
    ]


def adjusted(p: Sequence[float | None], comparisons: int = 0) -> list[float]:
    """Return Holm's adjusted p-values; 1 for None, which does not count as a comparison."""
    tested = [i for i, value in enumerate(p) if value is not None]
    others = [1.0] * (comparisons - len(tested))
    adjusted_p = holm([*(value for value in p if value is not None), *others])
    by_index = dict(zip(tested, adjusted_p, strict=False))
    return [by_index.get(i, 1.0) for i in range(len(p))]


def _gain(
    defined: Sequence[Evidence],
    numbers: Sequence[int] = (0,),
    undefined: Sequence[ExcludedClient] = (),
) -> Gain:
    """Return the mean gain of some clients, by their numbers, and the excluded clients."""
    mean = mean_difference(defined)
    low, high = mean.interval or (None, None)
    indices = set(mean.clients)
    included = [defined[i] for i in mean.clients]
    excluded = [
        ExcludedClient(numbers[i], e.rows, e.events)
        for i, e in enumerate(defined)
        if i not in indices
    ]
    return Gain(
        mean.value,
        low,
        high,
        sum(e.units for e in included),
        sum(e.rows for e in included),
        None if included[0].events is None else sum(e.events or 0 for e in included),
        mean.p,
        len(included),
        max(1, len(included[0].seeds)),
        tuple(sorted([*undefined, *excluded], key=lambda e: e.client)),
        error=mean.error,
    )


def _task(run: Result) -> Task:
    return task_of(run.about.get("targets", "classes"), run.about.get("edges") or ())


def _standard(run: Result) -> bool:
    return bool((run.config.get("model") or {}).get("loss", "auto") == "auto")


def _of_client(
    metric: Metric, task: Task, runs: Sequence[Result], bases: Sequence[Result], client: int
) -> Evidence | ExcludedClient:
    stored = [run.predictions(client) for run in (*runs, *bases)]
    answers = [answer for answer in stored if answer is not None]
    if len(answers) < len(stored):
        return ExcludedClient(client, 0 if stored[0] is None else len(stored[0][1]), None)
    targets = answers[0][1]
    if not _same_samples(client, [*runs, *bases], answers):
        if len(runs) > 1:
            raise ConfigError(
                f"{titled(runs[0].about['clients'][client])} has different test samples for each "
                f"seed, so there is no gain over seeds; look at each seed's gain, or "
                f"{ONE_PARTITION}; for data in memory, pass the same `test=`"
            )
        return ExcludedClient(client, len(targets), None)
    groups = _groups(runs[0], client, len(targets))
    outputs = [task.natural(outputs) for outputs, _ in answers]
    pairs = zip(outputs[: len(runs)], outputs[len(runs) :], strict=True)
    per_seed = [e for a, b in pairs if (e := evidence(metric, task, a, b, targets, groups))]
    if len(per_seed) == len(runs):
        return over_seeds(per_seed)
    return ExcludedClient(client, len(targets), _events(task, targets))


def _groups(run: Result, client: int, samples: int) -> NDArray[np.int64] | None:
    """Return the group of each test sample; None if unknown.

    Raises DataError if some are missing.
    """
    groups = run.groups(client)
    if groups is not None and len(groups) != samples:
        raise DataError(
            f"{run.folder}: the groups of {titled(run.about['clients'][client])} do not fit its "
            "answers; run the federation again"
        )
    return groups


def _same_samples(client: int, runs: Sequence[Result], answers: Sequence[Answers]) -> bool:
    """Return whether a client's predictions are for the same samples, by targets and by rows in the
    same data.
    """
    data = [(run.about.get("data") or {}).get("fingerprint") for run in runs]
    rows = {
        (fingerprint, row)
        for fingerprint, run in zip(data, runs, strict=True)
        for row in (run.about.get("test_rows") or ())[client : client + 1]
    }
    outputs, targets = answers[0]
    same_targets = all(a.shape == outputs.shape and np.array_equal(t, targets) for a, t in answers)
    return same_targets and len(rows) == len({fingerprint for fingerprint, _ in rows})


def _events(task: Task, targets: NDArray[Any]) -> int | None:
    return task.informative(targets) if task.informative and len(targets) else None


def evidence(
    metric: Metric,
    task: Task,
    a: Array,
    b: Array,
    targets: NDArray[Any],
    groups: NDArray[np.int64] | None = None,
) -> Evidence | None:
    """Return the evidence of one client's test samples for the gain of a over b; None if they do
    not define the metric.

    Args:
        metric: the headline metric.
        task: of the targets.
        a: (n, K) predictions, see ``Task``.
        b: (n, K) predictions of the other run.
        targets: (n,) or (n, K).
        groups: (n,) groups of samples, such as the rows of one patient; None if each sample is
            its own group.
    """
    if not len(targets):
        return None
    events = _events(task, targets)
    sign = 1 if metric.higher else -1
    truth = exact(targets)
    measure: Any = task.measures[metric.name]
    if metric.pools:
        step = 1.0 if metric == ACCURACY else 0.0
        return of_mean(sign * measure(a, truth), sign * measure(b, truth), events, groups, step)

    def difference(weights: Array) -> Array:
        gap = measure(a, truth, weights) - measure(b, truth, weights)
        return sign * np.where(np.abs(gap) <= EQUAL, 0.0, gap)

    jackknife = of_function(
        difference, task.strata(targets), events, groups, bounded=metric.low > -np.inf
    )
    if jackknife is None or metric.name != "auroc" or groups is not None:
        return jackknife
    return replace(jackknife, margins=_margins(a, b, truth))


def _margins(a: Array, b: Array, targets: NDArray[Any]) -> tuple[float, float] | None:
    """Return the margins of a difference of AUROCs of two answers; None for others."""
    first, second = (Components.of_answers(answers, targets) for answers in (a, b))
    return difference_margins(first, second) if first and second else None
