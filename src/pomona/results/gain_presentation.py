"""Presentation of a run's gain over another: numbers with intervals, and a text on the clients that
benefit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, floor, log10

from pomona.core.errors import listed
from pomona.metrics.influence import FEW
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import UNDECIDED, Gain, Verdict, gains, jointly
from pomona.results.run_numbers import Run, baseline
from pomona.results.seeds import over_seeds, seed_of
from pomona.results.wording import counted, listing

MINUS = "\N{MINUS SIGN}"
NO_INTERVAL = "too few test samples for an interval"
ALIKE = "no difference on these test samples"
CONSTANT = "no variation between these test samples, so no interval"
EXCLUSION = "for too few test samples, or none on record in both runs"
MAX_NAMES = 4
"""Maximum number of clients named in a sentence; more are counted."""


@dataclass(frozen=True)
class Gains:
    """Gain of ``run`` over ``base``; positive is better for every metric.

    Attributes:
        run, base: on one scenario, with one metric.
        clients: one gain per client in id order; None if the records do not determine it.
        mean: the mean over the clients with a gain; None without any.
        verdict: on the mean, jointly with those of all runs compared; None without a mean.
    """

    run: Run
    base: Run
    clients: Sequence[Gain | None]
    mean: Gain | None
    verdict: Verdict | None = None

    @property
    def correction(self) -> str:
        """A note that the verdict is not that of the mean's own interval; else empty."""
        same = self.mean is None or self.mean.verdict == self.verdict
        return "" if same else ", corrected for the number of runs compared"

    @cached_property
    def verdicts(self) -> list[Verdict | None]:
        """The joint verdicts on all clients (Holm's correction); None as in ``clients``."""
        return jointly(self.clients)

    def with_verdict(self, verdict: Verdict) -> list[int]:
        """Return the clients with this joint verdict."""
        return [i for i, v in enumerate(self.verdicts) if v == verdict]

    @property
    def margin(self) -> str:
        """The margin of ``not worse``, ``2.00 percentage points``."""
        margins = {g.margin for g in (*self.clients, self.mean) if g and g.margin is not None}
        return self.run.metric.gap(max(margins, default=0.0)).lstrip("+")

    @cached_property
    def comparisons(self) -> int:
        """The number of clients whose verdicts hold jointly."""
        return sum(gain is not None and gain.p is not None for gain in self.clients)

    @cached_property
    def differences(self) -> dict[int, float]:
        """Client -> its gain, with or without an interval."""
        metric, floor = self.run.metric, self.base.values
        return {
            c: metric.goodness(v) - metric.goodness(floor[c])
            for c, v in self.run.values.items()
            if c in floor
        }


@lru_cache(maxsize=64)
def gained(run: Run, base: Run) -> Gains:
    """Compare two runs sample by sample; empty for runs that do not share scenario and metric.

    Runs over the same seeds are compared seed by seed; a single run is compared with the other's
    run of its seed.
    """
    if len(run.seeds) != len(base.seeds):
        run, base = _same_seed(run, base), _same_seed(base, run)
    if run.scenario != base.scenario or run.metric != base.metric:
        return Gains(run, base, [], None)
    results, base_results = ([r.result for r in side.seeds or (side,)] for side in (run, base))
    return Gains(run, base, *gains(results, base_results))


def _same_seed(run: Run, reference: Run) -> Run:
    """Return the run of one seed to compare with a reference: that of its seed, else the first."""
    return next((r for r in run.seeds if seed_of(r) == seed_of(reference)), (*run.seeds, run)[0])


def gained_over(runs: Iterable[Run], base: Run | None) -> list[Gains]:
    """Return gains of the other runs on the base's scenario over it; empty without a base."""
    return [
        gained(run, base)
        for run in runs
        if base and run is not base and run.scenario == base.scenario
    ]


def over_training_alone(runs: list[Run]) -> list[Gains]:
    """Return the gains over training alone that have a mean, over seeds, with joint verdicts."""
    evaluated = [run for run in over_seeds(runs) if run.mean is not None]
    base = baseline(evaluated, evaluated[0]) if evaluated else None
    return with_verdicts([gains for gains in gained_over(evaluated, base) if gains.mean])


def with_verdicts(compared: Sequence[Gains]) -> list[Gains]:
    """Return the gains with the joint verdicts on their means."""
    verdicts = jointly([gains.mean for gains in compared])
    return [replace(gains, verdict=v) for gains, v in zip(compared, verdicts, strict=True)]


def signed(metric: Metric, value: float) -> str:
    """Format a difference with its sign, without a unit."""
    return metric.number(value, "+").replace("-", MINUS)


def value_and_interval(metric: Metric, gain: Gain) -> tuple[str, str]:
    """Format a gain and its interval without units, ``+0.078`` and ``+0.021 to +0.135``, or the
    reason for the interval's absence.
    """
    numbers = metric.numbers([gain.value, *(gain.interval or ())], "+")
    value, *limits = (number.replace("-", MINUS) for number in numbers)
    if limits:
        return value, " to ".join(limits)
    fewest = FEW * gain.clients  # clients below FEW may differ, and yet cancel each other
    enough = gain.pairs >= fewest and (gain.events is None or gain.events >= fewest)
    return value, NO_INTERVAL if not enough else CONSTANT if gain.value else ALIKE


def interval_text(metric: Metric, gain: Gain) -> str:
    """Format an interval with its level, ``95 % interval +0.021 to +0.135``, or its absence."""
    level = "95 % interval " if gain.interval else ""
    return level + value_and_interval(metric, gain)[1]


def measured(metric: Metric, gain: Gain) -> str:
    """Format a gain, ``+0.078 (95 % interval +0.021 to +0.135)``."""
    value, _ = value_and_interval(metric, gain)
    return f"{value}{metric.unit_of_gaps} ({interval_text(metric, gain)})"


def evidence(run: Run, gain: Gain) -> str:
    """Describe the basis of a mean gain: clients, test rows, events, and the names of excluded
    clients.
    """
    classes = run.result.about.get("targets", "classes") == "classes"
    rare = "outside their client's most frequent class" if classes else "events"
    events = "" if gain.events is None else f", {gain.events:,} of them {rare}"
    missing = [
        f"{run.client(e.client)} ({counted(e.rows, 'row')}"
        + ("" if e.events is None else f", {e.events} of them {rare}")
        + ")"
        for e in gain.excluded
    ]
    averaged = (
        f"{gain.clients} of {gain.clients + len(missing)} clients"
        if missing
        else counted(gain.clients, "client")
    )
    names = listed(missing, MAX_NAMES)
    left = f"; left out {EXCLUSION}: {names}" if missing else ""
    seeds = f", over {gain.seeds} seeds" if gain.seeds > 1 else ""
    groups = (
        f" in {counted(gain.pairs, 'group')} (data.group_column)" if gain.pairs < gain.rows else ""
    )
    return (
        f"This rests on {counted(gain.rows, 'test row')}{groups}{events}, of "
        f"{averaged}{seeds}{left}.{sides(gain)}"
    )


def sides(gain: Gain) -> str:
    """Name the models that a gain compares, `` Compared on test data: ...``; empty if unknown."""
    if not (gain.model and gain.base_model):
        return ""
    rival = ", of both" if gain.model == gain.base_model else f", against {gain.base_model}"
    return f" Compared on test data: {gain.model}{rival}."


def fewer_clients(gains: Gains) -> str:
    """Note that a gain's mean is over fewer clients than a run's other means; else empty."""
    missing = [e.client for e in gains.mean.excluded] if gains.mean else []
    if not missing:
        return ""
    return (
        f"Means over clients cover all {len(gains.run.values)}; statements on {gains.run.label}'s "
        f"gain leave out {client_names(gains.run, missing)} {EXCLUSION}."
    )


def detectable(metric: Metric, gain: Gain, comparisons: int) -> str:
    """Format the smallest gain that would be significant with 80 % probability among as many
    comparisons; "-" without an interval, "none" if it is more than the metric's whole range.
    """
    smallest = gain.error.detectable(comparisons) if gain.error else None
    if smallest and smallest > metric.high - metric.low:
        return "none"
    return metric.number(smallest)


def resolution(metric: Metric, gain: Gain, comparisons: int) -> str:
    """Describe what the test samples of an undecided gain could have shown; empty without an
    interval.
    """
    if gain.error is None:
        return ""
    smallest = gain.error.detectable(comparisons)
    units = "group" if gain.pairs < gain.rows else "row"
    size = "no gain"
    if smallest <= metric.high - metric.low:
        size = f"a gain of {metric.gap(smallest).lstrip('+')} or more"
    text = f"With {counted(gain.pairs, f'test {units}')} {size} would show with 80 % probability"
    if not gain.margin or smallest <= gain.margin:
        return f"{text}."
    margin = metric.gap(gain.margin).lstrip("+")
    factor = gain.error.factor(gain.margin, comparisons)
    if factor is None:
        return f"{text}; {margin} would need more seeds."
    return f"{text}; {margin} would need about {_rounded(factor * gain.pairs):,} {units}s."


def _rounded(value: float) -> int:
    """Round up to two significant digits."""
    unit = int(10 ** max(floor(log10(value)) - 1, 0))
    return ceil(value / unit) * unit


def client_names(run: Run, clients: Iterable[int]) -> str:
    """Return the clients' names, or their number."""
    ids = list(clients)
    return listing([run.client(c) for c in ids]) if len(ids) <= MAX_NAMES else f"{len(ids)} clients"


def by_client(gains: Gains) -> str:
    """Describe for which clients a run is better than the other, worse, or undecided; empty if
    unknown.
    """
    defined = [gain for gain in gains.clients if gain]
    if not defined:
        return ""
    if not (gains.with_verdict("better") or gains.with_verdict("worse")):
        text = f"The difference with {gains.run.label} is not significant for any single client"
    else:
        text = (
            f"Client by client, {gains.run.label} is better for "
            f"{_counted(gains.run, gains.with_verdict('better'), len(defined))}, worse for "
            f"{_counted(gains.run, gains.with_verdict('worse'), None)}"
        )
    clients = {v: gains.with_verdict(v) for v in UNDECIDED if gains.with_verdict(v)}
    clauses = []
    for verdict, ids in clients.items():
        number = "all" if len(ids) == len(defined) else str(len(ids))
        margin = f" by {gains.margin}" if verdict == "not worse" else ""
        clauses.append(f"“{verdict}{margin}” for {number}")
    return "; ".join([text, ", ".join(clauses)] if clauses else [text]) + "."


def _counted(run: Run, clients: list[int], total: int | None) -> str:
    """Format a count, ``2 of 5 (A and B)``, or ``none``."""
    if not clients:
        return "none"
    names = f" ({client_names(run, clients)})" if len(clients) <= MAX_NAMES else ""
    return f"{len(clients)}{f' of {total}' if total else ''}{names}"
