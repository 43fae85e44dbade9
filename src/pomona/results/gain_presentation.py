"""Presentation of a run's gain over another: numbers with intervals, and a text on the clients that
benefit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pomona.core.errors import listed
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import Gain, Verdict, gains, jointly
from pomona.results.run_numbers import Run
from pomona.results.seeds import seed_of
from pomona.results.wording import counted, listing

MINUS = "\N{MINUS SIGN}"
NO_INTERVAL = "too few test samples for an interval"
LEFT_OUT = "as their test samples are too few, do not define it or are not on record in both runs"
NAMED = 4
"""Maximum number of clients named in a sentence; more are counted."""


@dataclass(frozen=True)
class Gains:
    """Gain of ``run`` over ``base``; positive is better for every metric.

    Attributes:
        run, base: on one scenario, with one metric.
        clients: one gain per client in id order; None if the records do not determine it.
        mean: the mean over the clients that have one; None if none has.
    """

    run: Run
    base: Run
    clients: Sequence[Gain | None]
    mean: Gain | None

    @cached_property
    def verdicts(self) -> list[Verdict | None]:
        """The joint verdicts on all clients (Holm's correction); None as in ``clients``."""
        return jointly(self.clients)

    def with_verdict(self, verdict: Verdict) -> list[int]:
        """Return the clients with this joint verdict."""
        return [i for i, v in enumerate(self.verdicts) if v == verdict]

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
        run, base = _one_seed(run, base), _one_seed(base, run)
    if run.scenario != base.scenario or run.metric != base.metric:
        return Gains(run, base, [], None)
    mine, its = ([one.result for one in part.seeds or (part,)] for part in (run, base))
    return Gains(run, base, *gains(mine, its))


def _one_seed(run: Run, other: Run) -> Run:
    """Return the other's run with the seed of a run, else its first."""
    return next((one for one in run.seeds if seed_of(one) == seed_of(other)), (*run.seeds, run)[0])


def gained_over(runs: Iterable[Run], base: Run | None) -> list[Gains]:
    """Return gains of the other runs on the base's scenario over it; empty without a base."""
    return [
        gained(run, base)
        for run in runs
        if base and run is not base and run.scenario == base.scenario
    ]


def signed(metric: Metric, value: float) -> str:
    """Format a difference with its sign, without a unit."""
    return metric.number(value, "+").replace("-", MINUS)


def interval(metric: Metric, gain: Gain) -> str:
    """Format an interval, ``+0.021 to +0.135``, or its absence because of too few test samples."""
    if not gain.ends:
        return NO_INTERVAL
    low, high = (signed(metric, end) for end in gain.ends)
    return f"{low} to {high}"


def measured(metric: Metric, gain: Gain) -> str:
    """Format a gain, ``+0.078 (95 % interval +0.021 to +0.135)``."""
    value = metric.gap(gain.value).replace("-", MINUS)
    return f"{value} ({'95 % interval ' if gain.ends else ''}{interval(metric, gain)})"


def evidence(run: Run, gain: Gain) -> str:
    """Describe the basis of a mean gain: clients, test rows, events, and the names of excluded
    clients.
    """
    events = (
        ""
        if gain.events is None
        else f", {gain.events:,} of them events or answers other than the most frequent"
    )
    missing = [
        f"{run.client(out.client)} ({counted(out.rows, 'row')}"
        + ("" if out.events is None else f", {counted(out.events, 'event')}")
        + ")"
        for out in gain.left_out
    ]
    over = (
        f"{gain.clients} of {gain.clients + len(missing)} clients"
        if missing
        else counted(gain.clients, "client")
    )
    names = listed(missing, NAMED)
    left = f"; left out, {LEFT_OUT}: {names}" if missing else ""
    seeds = f", over {gain.seeds} seeds" if gain.seeds > 1 else ""
    groups = (
        f" in {counted(gain.pairs, 'group')} (data.group_column)" if gain.pairs < gain.rows else ""
    )
    return (
        f"This rests on {counted(gain.rows, 'test row')}{groups}{events}, of {over}{seeds}{left}."
        f"{sides(gain)}"
    )


def sides(gain: Gain) -> str:
    """Name the models that a gain compares, `` Compared on test data: ...``; empty if unknown."""
    if not (gain.judged and gain.base):
        return ""
    both = gain.judged == gain.base
    return (
        f" Compared on test data: {gain.judged}{', of both' if both else f', against {gain.base}'}."
    )


def of_fewer(found: Gains) -> str:
    """Note that a gain's mean is over fewer clients than a run's other means; empty if it is
    not.
    """
    missing = [out.client for out in found.mean.left_out] if found.mean else []
    if not missing:
        return ""
    return (
        f"Means over clients are over all {len(found.run.values)}; statements on "
        f"{found.run.label}'s gain leave out "
        f"{named(found.run, missing)}, {LEFT_OUT}."
    )


def named(run: Run, clients: Iterable[int]) -> str:
    """Return the clients' names, or their number."""
    known = list(clients)
    return (
        listing([run.client(c) for c in known]) if len(known) <= NAMED else f"{len(known)} clients"
    )


def by_client(found: Gains) -> str:
    """Describe for which clients a run is better than the other, worse, or undecided; empty if
    unknown.
    """
    known = [gain for gain in found.clients if gain]
    if not known:
        return ""
    up, down, open_ = (
        found.with_verdict(verdict)
        for verdict in ("better", "worse", "no difference that this data can show")
    )
    if not up and not down:
        return (
            f"Client by client, this data cannot show for any whether {found.run.label} is "
            "better or worse."
        )
    parts = [
        f"better for {_counted(found.run, up, len(known))}",
        f"worse for {_counted(found.run, down, None)}",
        *(
            [f"for {'all' if len(open_) == len(known) else len(open_)} this data cannot tell"]
            if open_
            else []
        ),
    ]
    return (
        f"Client by client, {found.run.label} is "
        + ", ".join(parts[:2])
        + ("; " + parts[2] if open_ else "")
        + "."
    )


def _counted(run: Run, clients: list[int], of: int | None) -> str:
    """Format a count, ``2 of 5 (A and B)``, or ``none``."""
    if not clients:
        return "none"
    names = f" ({named(run, clients)})" if len(clients) <= NAMED else ""
    return f"{len(clients)}{f' of {of}' if of else ''}{names}"
