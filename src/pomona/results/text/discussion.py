"""Generated sentences on differences from the paper: settings, leading methods and levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pomona.core.bounds import plain
from pomona.core.toml import flat
from pomona.data.catalogue import CATALOGUE
from pomona.metrics.client_statistics import Spread, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.paper_tables import NAMES, data_of, stated
from pomona.results.tables.client_tests import paired
from pomona.results.tables.comparison_tables import accuracy_of

WORDS = {
    "clients": "clients",
    "rounds": "rounds",
    "local_epochs": "local epochs a round",
    "batch_size": "batch size",
    "model.name": "network",
}

TIE = 1e-9


def sentences(made: Comparison) -> list[tuple[str, list[str]]]:
    """Return (column, sentences) for every column with a result or a reason for its absence."""
    return [(made.of(s)[0].column, _column(made, made.of(s))) for s in made.scenarios]


def _column(made: Comparison, entries: Sequence[ComparisonRow]) -> list[str]:
    done = [e for e in entries if e.cells]
    sentences = _missing(entries)
    if done and made.paper in NAMES:
        sentences += [*_runs(made, done[0]), *_order(made, done), *_level(made, done), *_notes(done)]
    return sentences


def _missing(entries: Sequence[ComparisonRow]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for e in entries:
        if not e.cells:
            reasons.setdefault((e.state, _reason(e)), []).append(e.row)
    every = len(entries)
    return [
        f"{'Every method' if len(rows) == every else ', '.join(rows)}: {state}{'. ' + reason if reason else ''}."
        for (state, reason), rows in reasons.items()
    ]


def _reason(entry: ComparisonRow) -> str:
    """Return the reason for a missing result; for missing data, what to download."""
    known = CATALOGUE.get(data_of(entry.dataset) or "")
    if entry.state == "data missing" and known:
        return f"Fetch {known.source}; “pomona data list” says where it is looked for"
    return entry.reason.rstrip(".")


def _runs(made: Comparison, entry: ComparisonRow) -> list[str]:
    """Return settings that differ from the paper."""
    own, theirs = flat(entry.settings), stated(made.paper, entry.setting)
    other = [
        f"{WORDS[key]} {plain(str(own[key]))}, not {value}"
        for key, value in theirs.items()
        if key in own and own[key] != value
    ]
    known, name = data_of(entry.dataset), own.get("data.name")
    data = []
    if known and name != known:
        data.append(
            f"{plain(str(name))} stands in for {entry.dataset}, so the levels have nothing to do with each other"
        )
    given = {part: own.get(f"data.{part}_limit") for part in ("train", "test")}
    limits = [f"{most:,} {part} rows at most" for part, most in given.items() if isinstance(most, int)]
    data += [" and ".join(limits) + ", not all"] if limits else []
    unsaid = "" if theirs else f" The {NAMES[made.paper]} paper does not state its settings; these are ours."
    facts = [*data, *other]
    return ([f"Ours has {'; '.join(facts)}.{unsaid}"] if facts else []) + (
        [unsaid.strip()] if unsaid and not facts else []
    )


@dataclass(frozen=True)
class _Both:
    """A method with both the paper's accuracy in percent, and ours as a share over seeds."""

    entry: ComparisonRow
    paper: float
    own: Spread


def _order(made: Comparison, done: Sequence[ComparisonRow]) -> list[str]:
    known = [
        _Both(e, paper, own)
        for e in done
        if (paper := accuracy_of(e)) is not None and (own := made.ours(e)) is not None
    ]
    return [f"{_lead(known)} {_agreement(known)}"] if len(known) > 1 else []


def _lead(known: Sequence[_Both]) -> str:
    """Describe the leading methods here, and the rank of the paper's best."""
    ours = sorted(known, key=lambda k: -k.own.mean)
    leader, best = ours[0], max(known, key=lambda k: k.paper)
    if leader.own.mean - best.own.mean < TIE:
        level = [k.entry.row for k in ours if leader.own.mean - k.own.mean < TIE and k is not best]
        return f"{best.entry.row} leads, as in the paper{', level with ' + ', '.join(level) if level else ''}."
    return (
        f"The paper is led by {best.entry.row} ({best.paper:.2f}); here {leader.entry.row} leads "
        f"({100 * leader.own.mean:.2f}) and {best.entry.row} comes {_ordinal(1 + ours.index(best))} "
        f"({100 * best.own.mean:.2f}).{_margin(leader.entry, best.entry)}"
    )


def _agreement(known: Sequence[_Both]) -> str:
    """Count the pairs of methods in the paper's order."""
    pairs = list(combinations(known, 2))
    swapped = [(a, b) for a, b in pairs if (a.paper - b.paper) * (a.own.mean - b.own.mean) < 0]
    close = sum(abs(a.own.mean - b.own.mean) <= max(a.own.std or 0, b.own.std or 0) for a, b in swapped)
    seeds = max(known, key=lambda k: k.own.mean).own.n
    within = f", {close} of them within a standard deviation over our seeds" if seeds > 1 and swapped else ""
    from scipy import stats  # late: a second, not needed for a page of one run

    tau = stats.kendalltau([k.paper for k in known], [k.own.mean for k in known]).statistic
    agree = "" if np.isnan(tau) else f" (Kendall's tau {tau:.2f})"
    kept = len(pairs) - len(swapped)
    return f"{kept} of {len(pairs)} pairs of methods stand in the paper's order or tie{agree}{within}."


def _margin(leader: ComparisonRow, best: ComparisonRow) -> str:
    a, b = paired(leader, best)
    test = wilcoxon(a, b) if a else None
    if test is None:
        return ""
    verdict = "is more than chance" if test.p < 0.05 else "may be chance"
    return f" Over clients the difference {verdict} (Wilcoxon, pairs that differ: {test.pairs}, p = {test.p:.2g})."


def _ordinal(place: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(place, f"{place}th")


def _level(made: Comparison, done: Sequence[ComparisonRow]) -> list[str]:
    gaps = [
        (e, 100 * own.mean - figure)
        for e in done
        if (own := made.ours(e)) is not None and (figure := accuracy_of(e)) is not None
    ]
    if not gaps:
        return []
    middle = sorted(g for _, g in gaps)[len(gaps) // 2]
    farthest = max(gaps, key=lambda g: abs(g[1]))
    return [
        f"Ours minus the paper's ({made.count}): median {middle:+.1f} points over {len(gaps)} methods, "
        f"farthest {farthest[0].row} with {farthest[1]:+.1f}."
    ]


def _notes(done: Sequence[ComparisonRow]) -> list[str]:
    return [f"{e.row}, the paper's figure*: {f.note}." for e in done for f in e.printed.values() if f.note and f.value]


def shared(made: Comparison) -> Mapping[str, Any]:
    """Return settings shared by all finished cells, by dotted key, except data locations."""
    trees = [flat(e.settings) for e in made.entries if e.cells]
    common = {k: v for k, v in trees[0].items() if all(t.get(k) == v for t in trees)} if trees else {}
    return {k: v for k, v in common.items() if k != "data.dir"}
