"""Where ours differs from the paper's, in generated sentences: what the runs were, who leads, at what level."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from pomona.data.catalogue import CATALOGUE
from pomona.experiments.suite import flat
from pomona.metrics.summary import wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow, spread
from pomona.results.paper_tables import NAMES, data_of, stated
from pomona.results.tables.bench_tables import accuracy_of
from pomona.results.tables.client_tests import paired

WORDS = {
    "clients": "clients",
    "rounds": "rounds",
    "local_epochs": "local epochs a round",
    "batch_size": "batch size",
    "model.name": "network",
}

TIE = 1e-9


def sentences(made: Comparison) -> list[tuple[str, list[str]]]:
    """(column, what there is to say about it) for every column that has a result or a reason for none."""
    return [(made.of(s)[0].column, _column(made, made.of(s))) for s in made.scenarios]


def _column(made: Comparison, entries: Sequence[ComparisonRow]) -> list[str]:
    done = [e for e in entries if e.cells]
    said = _missing(entries)
    if done and made.paper:
        said += [*_runs(made, done[0]), *_order(made, done), *_level(made, done), *_notes(done)]
    return said


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
    """Why there is no result; for data that are missing what to fetch, and not where this machine looked."""
    known = CATALOGUE.get(data_of(entry.dataset) or "")
    if entry.state == "data missing" and known:
        return f"Fetch {known.source}; `pomona data list` says where it is looked for"
    return entry.reason.rstrip(".")


def _runs(made: Comparison, entry: ComparisonRow) -> list[str]:
    """What was smaller or other than in the paper."""
    own, theirs = flat(entry.settings), stated(made.paper, entry.setting)
    other = [
        f"{WORDS[key]} {own[key]}, not {value}" for key, value in theirs.items() if key in own and own[key] != value
    ]
    known, name = data_of(entry.dataset), own.get("data.name")
    data = []
    if known and name != known:
        data.append(f"{name} stands in for {entry.dataset}, so the levels have nothing to do with each other")
    limits = [f"{own[key]:,} {part} rows at most" for part in ("train", "test") if own.get(key := f"data.{part}_limit")]
    data += [" and ".join(limits) + ", not all"] if limits else []
    unsaid = "" if theirs else f" The {NAMES[made.paper]} paper does not state its settings; these are ours."
    facts = [*data, *other]
    return ([f"Ours has {'; '.join(facts)}.{unsaid}"] if facts else []) + (
        [unsaid.strip()] if unsaid and not facts else []
    )


def _order(made: Comparison, done: Sequence[ComparisonRow]) -> list[str]:
    both = [(e, accuracy_of(e), spread(e.values(made.count))) for e in done]
    known = [(e, p, s) for e, p, s in both if p is not None and s is not None]
    if len(known) < 2:
        return []
    ours = sorted(known, key=lambda k: -k[2].mean)
    theirs = sorted(known, key=lambda k: -k[1])
    leader, best = ours[0], theirs[0]
    tau = stats.kendalltau([p for _, p, _ in known], [s.mean for _, _, s in known]).statistic
    swapped = [(a, b) for a, b in combinations(known, 2) if (a[1] - b[1]) * (a[2].mean - b[2].mean) < 0]
    level = [k[0].row for k in ours if leader[2].mean - k[2].mean < TIE and k[0] is not best[0]]
    if leader[2].mean - best[2].mean < TIE:
        first = f"{best[0].row} leads, as in the paper{', level with ' + ', '.join(level) if level else ''}."
    else:
        place = 1 + next(i for i, k in enumerate(ours) if k[0] is best[0])
        first = (
            f"The paper is led by {best[0].row} ({best[1]:.2f}); here {leader[0].row} leads "
            f"({100 * leader[2].mean:.2f}) and {best[0].row} comes {_ordinal(place)} ({100 * best[2].mean:.2f})."
            f"{_margin(leader[0], best[0])}"
        )
    total = len(known) * (len(known) - 1) // 2
    close = [1 for a, b in swapped if abs(a[2].mean - b[2].mean) <= max(a[2].std or 0, b[2].std or 0)]
    within = f", {len(close)} of them within a standard deviation over our seeds" if leader[2].n > 1 and swapped else ""
    agree = "" if np.isnan(tau) else f" (Kendall's tau {tau:.2f})"
    return [
        f"{first} {total - len(swapped)} of {total} pairs of methods stand in the paper's order or tie{agree}{within}."
    ]


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
        if (own := spread(e.values(made.count))) is not None and (figure := accuracy_of(e)) is not None
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
    """Settings that every finished cell has in common, by dotted key; without where a machine keeps its data."""
    trees = [flat(e.settings) for e in made.entries if e.cells]
    common = {k: v for k, v in trees[0].items() if all(t.get(k) == v for t in trees)} if trees else {}
    return {k: v for k, v in common.items() if k != "data.dir"}
