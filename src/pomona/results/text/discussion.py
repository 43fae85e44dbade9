"""Generated sentences on differences from reference numbers: settings, leading methods and
levels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from pomona.core.bounds import plain
from pomona.core.table import grouped
from pomona.core.toml import flat
from pomona.data.catalogue import CATALOGUE
from pomona.experiments.reference import Reference
from pomona.metrics.client_statistics import Spread, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.significance import paired
from pomona.results.wording import counted

SETTING_NAMES = {
    "clients": "clients",
    "rounds": "rounds",
    "local_epochs": "local epochs a round",
    "local_steps": "local steps a round",
    "batch_size": "batch size",
    "model.name": "network",
}

TIE = 1e-9


def heading(comparison: Comparison) -> str:
    """Return what the sentences are about: differences, or only results that are missing."""
    return "Where ours differs, and why" if comparison.reference else "Without a result"


def sentences(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Return (column, sentences) for every column with a result or a reason for its absence."""
    return [
        (comparison.in_scenario(s)[0].column, _column(comparison, comparison.in_scenario(s)))
        for s in comparison.scenarios
    ]


def _column(comparison: Comparison, entries: Sequence[ComparisonRow]) -> list[str]:
    finished = [e for e in entries if e.cells]
    reference = comparison.reference
    sentences = [*_missing(entries, reference)]
    if finished and reference:
        sentences += _runs(reference, finished[0])
        sentences += [
            *_order(comparison, reference, finished),
            *_level(comparison, reference, finished),
            *_notes(reference, finished),
        ]
    return sentences


def _missing(entries: Sequence[ComparisonRow], reference: Reference | None) -> Iterator[str]:
    reasons = grouped(((e.state, _reason(e, reference)), e.row) for e in entries if not e.cells)
    for (state, reason), rows in reasons.items():
        methods = "Every method" if len(rows) == len(entries) else ", ".join(rows)
        yield f"{methods}: {state}{'. ' + reason if reason else ''}."


def _reason(entry: ComparisonRow, reference: Reference | None) -> str:
    """Return the reason for a missing result; for missing data, what to download."""
    stated = reference.stated(entry.column) if reference else {}
    dataset = CATALOGUE.get(flat(entry.settings).get("data.name") or stated.get("data.name", ""))
    if entry.state == "data missing" and dataset:
        return f"Fetch {dataset.source}; “pomona data list” shows where it is searched for"
    return entry.reason.rstrip(".")


def _runs(reference: Reference, entry: ComparisonRow) -> list[str]:
    """Return settings that differ from those that the reference states."""
    ours, theirs = flat(entry.settings), reference.stated(entry.column)
    dataset, name = theirs.pop("data.name", None), ours.get("data.name")
    facts = []
    if dataset not in (None, name):
        facts.append(f"{plain(str(name))} replaces {dataset}, so the levels cannot be compared")
    by_split = {split: ours.get(f"data.{split}_limit") for split in ("train", "test")}
    limits = [
        f"{limit:,} {split} rows at most"
        for split, limit in by_split.items()
        if isinstance(limit, int)
    ]
    facts += [" and ".join(limits) + ", not all"] if limits else []
    facts += [
        f"{SETTING_NAMES.get(key, key)} {plain(str(ours[key]))}, not {plain(str(value))}"
        for key, value in theirs.items()
        if key in ours and ours[key] != value
    ]
    sentences = [f"Ours has {'; '.join(facts)}."] if facts else []
    if not theirs:
        sentences.append(f"The {reference.label} does not state its settings; these are ours.")
    return [" ".join(sentences)] if sentences else []


@dataclass(frozen=True)
class _Method:
    """A method with both numbers: the reference's, in the unit of the metric's heading, and ours
    over seeds.
    """

    entry: ComparisonRow
    theirs: float
    ours: Spread


def _methods(comparison: Comparison, finished: Sequence[ComparisonRow]) -> list[_Method]:
    values = [(e, e.printed.value, comparison.ours(e)) for e in finished]
    return [_Method(e, theirs, ours) for e, theirs, ours in values if theirs is not None and ours]


def _order(
    comparison: Comparison, reference: Reference, finished: Sequence[ComparisonRow]
) -> list[str]:
    methods = _methods(comparison, finished)
    if len(methods) < 2:
        return []
    return [f"{_lead(methods, reference.label)} {_agreement(methods, reference.label)}"]


def _lead(methods: Sequence[_Method], label: str) -> str:
    """Describe the leading methods here, and the rank of the reference's best."""
    metric = methods[0].entry.metric
    ours = sorted(methods, key=lambda k: -metric.goodness(k.ours.mean))
    leader, best = ours[0], max(methods, key=lambda k: metric.goodness(k.theirs))
    if abs(leader.ours.mean - best.ours.mean) < TIE:
        level = [
            k.entry.row for k in ours if abs(leader.ours.mean - k.ours.mean) < TIE and k is not best
        ]
        return (
            f"{best.entry.row} leads, as in the "
            f"{label}{', level with ' + ', '.join(level) if level else ''}."
        )
    return (
        f"The {label} is led by {best.entry.row} ({best.theirs:.2f}); here {leader.entry.row} "
        f"leads ({metric.number(leader.ours.mean)}) and {best.entry.row} is "
        f"{_ordinal(1 + ours.index(best))} "
        f"({metric.number(best.ours.mean)}).{_margin(leader.entry, best.entry)}"
    )


def _agreement(methods: Sequence[_Method], label: str) -> str:
    """Count the pairs of methods in the reference's order, in a sentence."""
    pairs = list(combinations(methods, 2))
    swapped = [(a, b) for a, b in pairs if (a.theirs - b.theirs) * (a.ours.mean - b.ours.mean) < 0]
    close = sum(
        abs(a.ours.mean - b.ours.mean) <= max(a.ours.std or 0, b.ours.std or 0) for a, b in swapped
    )
    seeds = max(methods, key=lambda k: k.ours.mean).ours.n
    within = ""
    if seeds > 1 and swapped:
        within = f", {close} of them within a standard deviation over our seeds"
    from scipy import stats  # late: a second, not needed for a page of one run

    tau = stats.kendalltau([k.theirs for k in methods], [k.ours.mean for k in methods]).statistic
    agree = "" if np.isnan(tau) else f" (Kendall's tau {tau:.2f})"
    agreeing = len(pairs) - len(swapped)
    return (
        f"{agreeing} of {len(pairs)} pairs of methods are in the {label}'s order or "
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


def _ordinal(rank: int) -> str:
    """Return first, second or third, else 4th, 11th, 21st, 102nd."""
    teens = 10 < rank % 100 < 14
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return {1: "first", 2: "second", 3: "third"}.get(rank, f"{rank}{ending}")


def _level(
    comparison: Comparison, reference: Reference, finished: Sequence[ComparisonRow]
) -> list[str]:
    metric = finished[0].metric
    gaps = [
        (method.entry, metric.scaled(method.ours.mean) - method.theirs)
        for method in _methods(comparison, finished)
    ]
    if not gaps:
        return []
    middle = median(gap for _, gap in gaps)
    farthest, largest = max(gaps, key=lambda g: abs(g[1]))
    spec, unit = ("+.1f", " points") if metric.percent else (f"+{metric.style}", "")
    return [
        f"Ours minus the {reference.label}'s ({comparison.count}): median {middle:{spec}}{unit} "
        f"over {counted(len(gaps), 'method')}, farthest {farthest.row} with {largest:{spec}}."
    ]


def _notes(reference: Reference, finished: Sequence[ComparisonRow]) -> list[str]:
    return [
        f"{e.row}, the {reference.label}'s figure*: {note}."
        for e in finished
        for note in e.printed.notes
    ]


def shared(comparison: Comparison) -> Mapping[str, Any]:
    """Return settings shared by all finished cells, by dotted key, except data locations."""
    trees = [flat(e.settings) for e in comparison.entries if e.cells]
    first = trees[0] if trees else {}
    return {k: v for k, v in first.items() if k != "data.dir" and all(t.get(k) == v for t in trees)}
