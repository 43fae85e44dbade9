"""Gain of a run over another on the same test samples, with paired intervals and a verdict (docs/statistics.md).

Both runs answer the same samples, so that what makes a sample hard for both cancels out. Clients are the members that
there are, not a draw from others: an interval over clients says how certain their mean gain is given other test
samples, not what another federation would gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError
from pomona.metrics.client_statistics import holm
from pomona.metrics.gain_interval import LEVEL, mean_difference
from pomona.metrics.influence import SAME, Evidence, of_function, of_mean, over_seeds
from pomona.metrics.metric import ACCURACY, LOSS, Metric
from pomona.metrics.nan_safe import Array
from pomona.record.predictions import Answers
from pomona.record.result import Result
from pomona.tasks import Task, task_of

Verdict = Literal["better", "worse", "no difference that this data can show"]


@dataclass(frozen=True)
class LeftOut:
    """A client that a mean gain leaves out: its samples do not define the metric, or are too few for its variance.

    Attributes:
        client: its number.
        rows: its test samples; 0 where none are on record.
        events: those of the rarer answer, or with an event that was seen; None where there is no such thing.
    """

    client: int
    rows: int
    events: int | None


@dataclass(frozen=True)
class Gain:
    """A difference in a metric, its sign turned where less is better: more than 0 is better.

    Attributes:
        value: of all samples, in the unit of the metric; of accuracies, 0.01 is a percentage point.
        low, high: 95 % interval; both None where the samples are too few for one.
        pairs: independent units that both answered: test samples, or groups of them (patients) where known.
        rows: test samples that both answered.
        events: of them, those of the rarer answer, or with an event that was seen; None where there is no such thing.
        p: two-sided p-value of no difference; None where there is no interval.
        clients: how many clients it is of.
        seeds: how many seeds it is the mean of.
        left_out: clients that a mean leaves out, in id order; none of one client's gain.
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
    left_out: tuple[LeftOut, ...] = ()

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval; None where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def verdict(self) -> Verdict:
        """Only what the interval supports."""
        low, high = self.ends or (0.0, 0.0)
        if low <= 0 <= high:
            return "no difference that this data can show"
        return "better" if low > 0 else "worse"


def gains(run: Result | Sequence[Result], base: Result | Sequence[Result]) -> tuple[list[Gain | None], Gain | None]:
    """Gains of a run over another in its metric: one a client in id order, and their mean.

    Of sequences of runs, one a seed in the same order, they are means over seeds, and intervals are of other samples
    and other seeds.

    >>> import pomona
    >>> shared = {"clients": 3, "rounds": 1, "lr": 0.1}
    >>> run, alone = (pomona.run(pomona.Config(method=method, **shared)) for method in ("fedavg-ft", "separate"))
    >>> clients, mean = pomona.gains(run, alone)
    >>> len(clients), mean.low <= mean.value <= mean.high, mean.verdict, mean.left_out
    (3, True, '...', ())

    None for a client where it is undefined: no test samples, no predictions on record, other samples in the other run
    (other targets, or other rows of the same data), or a metric that they do not define. The mean is over the others,
    but for those whose samples are too few; it names all that it leaves out. What a network minimised is not known from
    predictions where the loss is a user's own or the targets are numbers (ask for ``mse``): all None.

    Raises:
        ConfigError: the sequences are empty or of other lengths, or their seeds have other test samples.
        DataError: a file of predictions is damaged.
    """
    runs, bases = ([part] if isinstance(part, Result) else [*part] for part in (run, base))
    if not runs or len(runs) != len(bases):
        raise ConfigError(f"{len(runs)} runs against {len(bases)}; give two runs of each seed, one on either side")
    first = runs[0]
    metric, task, n = first.metric, _task(first), len(first.about.get("clients") or ())
    minimised = all(map(_standard, (*runs, *bases))) and not task.standardised
    if metric.name not in task.measures or (metric == LOSS and not minimised):
        return [None] * n, None
    each = [_of_client(metric, task, runs, bases, client) for client in range(n)]
    known = {client: one for client, one in enumerate(each) if isinstance(one, Evidence)}
    clients = [_gain([one]) if isinstance(one, Evidence) else None for one in each]
    if not known:
        return clients, None
    return clients, _gain(list(known.values()), list(known), [one for one in each if isinstance(one, LeftOut)])


def jointly(clients: Sequence[Gain | None]) -> list[Verdict | None]:
    """Verdicts of many clients that all hold at once, with 95 %: Holm's correction of their p-values.

    Of 65 clients of equal models about three are called better or worse by their own intervals.
    """
    judged = [i for i, gain in enumerate(clients) if gain and gain.p is not None]
    adjusted = dict(zip(judged, holm([gain.p for gain in clients if gain and gain.p is not None]), strict=True))
    open_: Verdict = "no difference that this data can show"
    return [
        None if gain is None else gain.verdict if adjusted.get(i, 1.0) <= LEVEL else open_
        for i, gain in enumerate(clients)
    ]


def _gain(known: Sequence[Evidence], places: Sequence[int] = (0,), undefined: Sequence[LeftOut] = ()) -> Gain:
    """The mean gain of some clients, by their numbers, and of whom it is not."""
    found = mean_difference(known)
    low, high = found.interval or (None, None)
    counted = set(found.kept)
    kept = [known[i] for i in found.kept]
    few = [LeftOut(places[i], one.rows, one.events) for i, one in enumerate(known) if i not in counted]
    return Gain(
        found.value,
        low,
        high,
        sum(one.units for one in kept),
        sum(one.rows for one in kept),
        None if kept[0].events is None else sum(one.events or 0 for one in kept),
        found.p,
        len(kept),
        max(1, len(kept[0].seeds)),
        tuple(sorted([*undefined, *few], key=lambda one: one.client)),
    )


def _task(run: Result) -> Task:
    return task_of(run.about.get("targets", "classes"), run.about.get("edges") or ())


def _standard(run: Result) -> bool:
    return bool((run.config.get("model") or {}).get("loss", "auto") == "auto")


def _of_client(
    metric: Metric, task: Task, runs: Sequence[Result], bases: Sequence[Result], client: int
) -> Evidence | LeftOut:
    known = [run.predictions(client) for run in (*runs, *bases)]
    answers = [one for one in known if one is not None]
    if len(answers) < len(known):
        return LeftOut(client, 0 if known[0] is None else len(known[0][1]), None)
    targets = answers[0][1]
    if not _same_samples(client, [*runs, *bases], answers):
        if len(runs) > 1:
            raise ConfigError(
                f"client {client} has other test samples in other seeds, so there is no gain over seeds; look at the "
                "gain of each, or give all seeds one partition (`pomona data show --save`, partition.name = file)"
            )
        return LeftOut(client, len(targets), None)
    groups = runs[0].groups(client)
    if groups is not None and len(groups) != len(targets):
        raise DataError(
            f"{runs[0].folder}: the groups of client {client} do not fit its answers; run the federation again"
        )
    outputs = [task.natural(one) for one, _ in answers]
    pairs = zip(outputs[: len(runs)], outputs[len(runs) :], strict=True)
    each = [found for a, b in pairs if (found := evidence(metric, task, a, b, targets, groups))]
    return over_seeds(each) if len(each) == len(runs) else LeftOut(client, len(targets), _events(task, targets))


def _same_samples(client: int, runs: Sequence[Result], answers: Sequence[Answers]) -> bool:
    """Whether answers of a client are to the same samples: by their targets, and by their rows in the same data."""
    data = [(run.about.get("data") or {}).get("fingerprint") for run in runs]
    rows = {
        (one, row)
        for one, run in zip(data, runs, strict=True)
        for row in (run.about.get("test_rows") or ())[client : client + 1]
    }
    outputs, targets = answers[0]
    alike = all(a.shape == outputs.shape and np.array_equal(t, targets) for a, t in answers)
    return alike and len(rows) == len({one for one, _ in rows})


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
    """What one client's test samples say of the gain of a over b; None if they do not define the metric.

    Args:
        metric: what both are judged by.
        task: what the targets are.
        a: (n, K) predictions, see ``Task``.
        b: (n, K) those of the other.
        targets: (n,) or (n, K).
        groups: (n,) what samples belong together, as rows of one patient; None where each stands alone.
    """
    if not len(targets):
        return None
    events = _events(task, targets)
    sign = 1 if metric.higher else -1
    truth = targets if targets.dtype.kind in "iu" else targets.astype(float)
    measure: Any = task.measures[metric.name]
    if metric.pools:
        step = 1.0 if metric == ACCURACY else 0.0
        return of_mean(sign * measure(a, truth), sign * measure(b, truth), events, groups, step)

    def difference(weights: Array) -> Array:
        gap = measure(a, truth, weights) - measure(b, truth, weights)
        return sign * np.where(np.abs(gap) <= SAME, 0.0, gap)

    return of_function(difference, task.strata(targets), events, groups, bounded=metric.low > -np.inf)
