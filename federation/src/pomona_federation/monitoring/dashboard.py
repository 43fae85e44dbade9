"""The operators' page of one run: the contents of its files as HTML without scripts."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from pomona.core.table import NOTHING, Table
from pomona.metrics.metric import METRICS, Metric, is_own, metric_named
from pomona.results.web.page_writer import render
from pomona.results.wording import size
from pomona_federation.monitoring.chart import Line, chart
from pomona_federation.monitoring.run_history import Decision, Point, RecordedRun
from pomona_federation.monitoring.server_metrics import state_of
from pomona_federation.monitoring.watched_server import StudyView, moment

PACKAGE = "pomona_federation.monitoring"
SECONDS = 10  # seconds until the page reloads
SHOWN = 15  # most rounds and decisions in a table
WIDTHS = {"wide": 1080, "narrow": 350}
SECTIONS = (
    ("now", "Now"),
    ("silos", "Silos"),
    ("metric", "Metric"),
    ("rounds", "Rounds"),
    ("admissions", "Admissions"),
)
MISSED = {"absent", "rejected", "revoked"}
GRAVE = {"failed", "killed", "interrupted"}
PLAIN = {"killed": "killed: the process is gone, and its file says that it runs"}


def page(study: StudyView, refreshes: bool) -> str:
    """The page of a study.

    Args:
        study: its current state.
        refreshes: whether the page reloads itself.
    """
    now, standing, record = time.time(), study.standing, study.recorded
    metric = metric_named(record.metric) if record.metric in METRICS or is_own(record.metric) else None
    state, waiting = state_of(standing), standing["waiting"]
    return render(
        "dashboard.html.jinja",
        PACKAGE,
        title=standing["federation"],
        links=SECTIONS,
        first=SECTIONS[0][0],
        study=study.name,
        seconds=SECONDS if refreshes else None,
        stamp=clock(now),
        now=standing,
        state=PLAIN.get(state, state),
        grave=state in GRAVE,
        committed=ago(moment(study.judged.committed), now),
        waiting=waiting,
        until=clock(waiting["until"]) if waiting else "",
        warnings=[text for text in (standing["warning"], *standing["notes"]) if text],
        silos=_silos(study, now),
        metric=metric,
        judged=" ".join(record.headline),
        charts=_charts(record, metric) if metric else {},
        rounds=_rounds(record, metric),
        refused=_decisions([d for d in study.judged.decisions if not d.admitted], "refused"),
        decisions=_decisions(list(study.judged.decisions), "decisions"),
    )


def trouble(line: str) -> str:
    """The page shown if the files cannot be read, with the error in one line."""
    return render("trouble.html.jinja", PACKAGE, line=line, seconds=SECONDS)


def clock(when: float) -> str:
    """A time, in UTC."""
    try:
        return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return NOTHING


def ago(when: float | None, now: float) -> str:
    """Time elapsed since a moment, in one unit; a dash for none."""
    if when is None:
        return NOTHING
    past = max(0.0, now - when)
    for unit, seconds, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if past < seconds * most:
            return f"{past // seconds:.0f} {unit} ago"
    return f"{past // 86400:.0f} days ago"


def _silos(study: StudyView, now: float) -> Table:
    record, judged, silos = study.recorded, study.judged, study.standing["silos"]
    place = {name: i for i, name in enumerate(record.names)}
    counts = any(silo["epsilon"] is not None for silo in silos)
    header = ["silo", "state", "last heard", "samples", "weight", "sent", "received", "admitted", "refused"]
    rows = []
    for silo in silos:
        name, weight = silo["silo"], silo["weight"]
        i = place.get(name, -1)
        rows.append(
            [
                name,
                silo["state"],
                ago(moment(study.seen.get(name, "")), now),
                NOTHING if silo["samples"] is None else f"{silo['samples']:,}",
                NOTHING if weight is None else f"{100 * weight:.3g} %",
                traffic(record.down[i]),
                traffic(record.up[i]),
                str(judged.admitted[name]),
                str(judged.refused[name]),
                *([NOTHING if silo["epsilon"] is None else f"{silo['epsilon']:.3g}"] if counts else []),
                silo["why"],
            ]
        )
    words = {0, 1, 2, len(header) + counts}
    heads = [*header, *(["epsilon at most"] if counts else []), "why not"]
    marked = frozenset((k, 1) for k, silo in enumerate(silos) if silo["state"] in MISSED)
    return Table("silos", "", (), heads, rows, words, marked)


def traffic(n: int) -> str:
    """A number of bytes in readable form; a dash for none."""
    return size(n) if n else NOTHING


def _curves(record: RecordedRun) -> dict[str, list[Point]]:
    """The curves of the run's headline model and moment, by split."""
    return {split: record.curves.get((*record.headline, split), []) for split in ("validation", "test")}


def _charts(record: RecordedRun, metric: Metric) -> dict[str, Markup]:
    """The chart for each screen width; the narrow one is hidden on wide screens."""
    curves = _curves(record)
    said = [f"{split} {metric.text(points[-1].mean)}" for split, points in curves.items() if points]
    label = f"{metric.heading} over rounds, mean over silos; last: {', '.join(said)}"
    lines = [Line(split, points, band=split == "test" or not curves["test"]) for split, points in curves.items()]
    return {kind: chart(lines, metric, width, label) for kind, width in WIDTHS.items() if said}


def _rounds(record: RecordedRun, metric: Metric | None) -> Table:
    points = {(split, p.round): p for split, curve in _curves(record).items() for p in curve[-2 * SHOWN :]}
    splits = [split for split in ("test", "validation") if any(key[0] == split for key in points)] if metric else []
    rows = [
        [
            str(r.round),
            *(spelt(points.get((split, r.round)), metric) for split in splits if metric),
            *(str(r.silos), f"{r.seconds:.1f}", traffic(r.down), traffic(r.up)),
        ]
        for r in list(record.rounds)[: -SHOWN - 1 : -1]
    ]
    heads = [f"{split}: {metric.heading}" for split in splits if metric]
    return Table("rounds", "", (), ["round", *heads, "silos", "seconds", "sent", "received"], rows)


def spelt(point: Point | None, metric: Metric) -> str:
    """A mean with its interval: "95.47 (93.10 to 97.84)"."""
    if point is None:
        return NOTHING
    ends = "" if point.low is None else f" ({metric.number(point.low)} to {metric.number(point.high)})"
    return f"{metric.number(point.mean)}{ends}"


def _decisions(decisions: Sequence[Decision], name: str) -> Table:
    header = ["silo", "round", "decision", "norm", "limit", "time, UTC", "reason"]
    rows = [
        [
            d.silo,
            NOTHING if d.round is None else str(d.round),
            "admitted" if d.admitted else "refused",
            NOTHING if d.norm is None else f"{d.norm:.4g}",
            NOTHING if d.limit is None else f"{d.limit:.4g}",
            d.time[:19].replace("T", " "),
            d.reason or NOTHING,
        ]
        for d in decisions[: -SHOWN - 1 : -1]
    ]
    return Table(name, "", (), header, rows, {0, 2, 5, 6})
