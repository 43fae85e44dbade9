"""Generated sentences on differences from reference numbers: settings, leading methods and
levels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from pomona.core.bounds import plain
from pomona.core.toml import flat
from pomona.data.catalogue import CATALOGUE
from pomona.experiments.reference import Reference
from pomona.metrics.client_statistics import Spread, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.significance import paired
from pomona.results.wording import counted

WORDS = {
    "clients": "clients",
    "rounds": "rounds",
    "local_epochs": "local epochs a round",
    "local_steps": "local steps a round",
    "batch_size": "batch size",
    "model.name": "network",
}

TIE = 1e-9


def sentences(made: Comparison) -> list[tuple[str, list[str]]]:
    """Return (column, sentences) for every column with a result or a reason for its absence."""
    return [(made.of(s)[0].column, _column(made, made.of(s))) for s in made.scenarios]


def _column(made: Comparison, entries: Sequence[ComparisonRow]) -> list[str]:
    done = [e for e in entries if e.cells]
    known = made.reference
    sentences = _missing(entries, known)
    if done and known:
        sentences += _runs(known, done[0])
        sentences += [*_order(made, known, done), *_level(made, known, done), *_notes(known, done)]
    return sentences


def _missing(entries: Sequence[ComparisonRow], reference: Reference | None) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for e in entries:
        if not e.cells:
            reasons.setdefault((e.state, _reason(e, reference)), []).append(e.row)
    every = len(entries)
    return [
        (
            f"{'Every method' if len(rows) == every else ', '.join(rows)}: "
            f"{state}{'. ' + reason if reason else ''}."
        )
        for (state, reason), rows in reasons.items()
    ]


def _reason(entry: ComparisonRow, reference: Reference | None) -> str:
    """Return the reason for a missing result; for missing data, what to download."""
    stated = reference.stated(entry.column) if reference else {}
    known = CATALOGUE.get(flat(entry.settings).get("data.name") or stated.get("data.name", ""))
    if entry.state == "data missing" and known:
        return f"Fetch {known.source}; “pomona data list” shows where it is searched for"
    return entry.reason.rstrip(".")


def _runs(reference: Reference, entry: ComparisonRow) -> list[str]:
    """Return settings that differ from those that the reference states."""
    own, theirs = flat(entry.settings), reference.stated(entry.column)
    wanted, name = theirs.pop("data.name", None), own.get("data.name")
    facts = []
    if wanted not in (None, name):
        facts.append(f"{plain(str(name))} replaces {wanted}, so the levels cannot be compared")
    given = {part: own.get(f"data.{part}_limit") for part in ("train", "test")}
    limits = [
        f"{most:,} {part} rows at most" for part, most in given.items() if isinstance(most, int)
    ]
    facts += [" and ".join(limits) + ", not all"] if limits else []
    facts += [
        f"{WORDS.get(key, key)} {plain(str(own[key]))}, not {plain(str(value))}"
        for key, value in theirs.items()
        if key in own and own[key] != value
    ]
    sentences = [f"Ours has {'; '.join(facts)}."] if facts else []
    if not theirs:
        sentences.append(f"The {reference.label} does not state its settings; these are ours.")
    return [" ".join(sentences)] if sentences else []


@dataclass(frozen=True)
class _Both:
    """A method with the reference's number, in the unit of the metric's heading, and ours over
    seeds.
    """

    entry: ComparisonRow
    theirs: float
    own: Spread


def _both(made: Comparison, done: Sequence[ComparisonRow]) -> list[_Both]:
    found = [(e, e.printed.value, made.ours(e)) for e in done]
    return [_Both(e, theirs, own) for e, theirs, own in found if theirs is not None and own]


def _order(made: Comparison, reference: Reference, done: Sequence[ComparisonRow]) -> list[str]:
    known = _both(made, done)
    if len(known) < 2:
        return []
    return [f"{_lead(known, reference.label)} {_agreement(known, reference.label)}"]


def _lead(known: Sequence[_Both], label: str) -> str:
    """Describe the leading methods here, and the rank of the reference's best."""
    metric = known[0].entry.metric
    ours = sorted(known, key=lambda k: -metric.goodness(k.own.mean))
    leader, best = ours[0], max(known, key=lambda k: metric.goodness(k.theirs))
    if abs(leader.own.mean - best.own.mean) < TIE:
        level = [
            k.entry.row for k in ours if abs(leader.own.mean - k.own.mean) < TIE and k is not best
        ]
        return (
            f"{best.entry.row} leads, as in the "
            f"{label}{', level with ' + ', '.join(level) if level else ''}."
        )
    return (
        f"The {label} is led by {best.entry.row} ({best.theirs:.2f}); here {leader.entry.row} "
        f"leads ({metric.number(leader.own.mean)}) and {best.entry.row} comes "
        f"{_ordinal(1 + ours.index(best))} "
        f"({metric.number(best.own.mean)}).{_margin(leader.entry, best.entry)}"
    )


def _agreement(known: Sequence[_Both], label: str) -> str:
    """Count the pairs of methods in the reference's order."""
    pairs = list(combinations(known, 2))
    swapped = [(a, b) for a, b in pairs if (a.theirs - b.theirs) * (a.own.mean - b.own.mean) < 0]
    close = sum(
        abs(a.own.mean - b.own.mean) <= max(a.own.std or 0, b.own.std or 0) for a, b in swapped
    )
    seeds = max(known, key=lambda k: k.own.mean).own.n
    within = (
        f", {close} of them within a standard deviation over our seeds"
        if seeds > 1 and swapped
        else ""
    )
    from scipy import stats  # late: a second, not needed for a page of one run

    tau = stats.kendalltau([k.theirs for k in known], [k.own.mean for k in known]).statistic
    agree = "" if np.isnan(tau) else f" (Kendall's tau {tau:.2f})"
    kept = len(pairs) - len(swapped)
    return (
        f"{kept} of {len(pairs)} pairs of methods stand in the {label}'s order or "
        f"tie{agree}{within}."
    )


def _margin(leader: ComparisonRow, best: ComparisonRow) -> str:
    a, b = paired(leader, best)
    test = wilcoxon(a, b) if a else None
    if test is None:
        return ""
    return (
        f" Over clients p = {test.p:.2g} (Wilcoxon, pairs that differ: {test.pairs}), not "
        "corrected for the choice of the leader."
    )


def _ordinal(place: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


def _level(made: Comparison, reference: Reference, done: Sequence[ComparisonRow]) -> list[str]:
    metric = done[0].metric
    gaps = [(both.entry, metric.scaled(both.own.mean) - both.theirs) for both in _both(made, done)]
    if not gaps:
        return []
    middle = median(gap for _, gap in gaps)
    farthest, most = max(gaps, key=lambda g: abs(g[1]))
    form, unit = ("+.1f", " points") if metric.percent else (f"+{metric.style}", "")
    return [
        f"Ours minus the {reference.label}'s ({made.count}): median {middle:{form}}{unit} "
        f"over {counted(len(gaps), 'method')}, farthest {farthest.row} with {most:{form}}."
    ]


def _notes(reference: Reference, done: Sequence[ComparisonRow]) -> list[str]:
    return [
        f"{e.row}, the {reference.label}'s figure*: {note}."
        for e in done
        for note in e.printed.notes
    ]


def shared(made: Comparison) -> Mapping[str, Any]:
    """Return settings shared by all finished cells, by dotted key, except data locations."""
    trees = [flat(e.settings) for e in made.entries if e.cells]
    common = (
        {k: v for k, v in trees[0].items() if all(t.get(k) == v for t in trees)} if trees else {}
    )
    return {k: v for k, v in common.items() if k != "data.dir"}
