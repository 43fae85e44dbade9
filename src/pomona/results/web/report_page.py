"""The report page: one self-contained HTML file, and optional figure files next to it."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.resources import files
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from markupsafe import Markup

from pomona.core.errors import ConfigError
from pomona.core.table import PLACEHOLDER, Table
from pomona.core.toml import SECTIONS as TABLES
from pomona.core.toml import flat
from pomona.metrics.metric import EVERY_METRIC, Metric, metric_named
from pomona.record.result import Result
from pomona.results.figures.plot import LARGEST, ReportFigure, drawing
from pomona.results.figures.sections import SECTIONS, running, sections
from pomona.results.figures.series import MATRIX, too_large
from pomona.results.gain_presentation import MINUS, fewer_clients
from pomona.results.run_numbers import Run, comparable, contender, records, stage_name
from pomona.results.run_numbers import runs as prepare
from pomona.results.seeds import over_seeds
from pomona.results.summary_table import distinct, table
from pomona.results.tables import coefficients, elsewhere
from pomona.results.tables.by_task import labels, regions, survival_table
from pomona.results.tables.gains import gain_tables
from pomona.results.tables.optional import privacy, subgroups, unseen
from pomona.results.tables.outcomes import MOST_ROWS, outcome_tables
from pomona.results.tables.participation import liars, notes, participation
from pomona.results.text import narrative
from pomona.results.text.cautions import cautions
from pomona.results.text.headline import headline
from pomona.results.text.verdicts import contest_of, verdicts
from pomona.results.web.page_writer import render, write_page
from pomona.results.wording import capital, size

NAME = "report.html"
Figures: TypeAlias = Mapping[str, Sequence[ReportFigure]]
"""Figures by section of the page."""
Setting: TypeAlias = tuple[str, list[str], bool]
Link: TypeAlias = tuple[str, str]
"""Anchor and heading of a section."""
FACTS = ("data", "model", "parameters", "partition_sha256", "versions")
"""Facts of the start event, in addition to the settings, that a reader needs to repeat the run."""


def write(results: list[Result], folder: Path, formats: Sequence[str] = ()) -> Path:
    """Write ``report.html`` into a folder, and with formats each figure in ``figures/``; return the
    page's path.

    One result gives the report of a run, several a comparison. Figures without recorded numbers are
    omitted.

    Args:
        results: the runs.
        folder: where the page is written.
        formats: formats of each figure, of ``FORMATS``; the files replace those of an earlier call.

    Raises:
        ConfigError: there is no result.
        StorageError: ``folder`` cannot be written.
    """
    if not results:
        raise ConfigError("a report needs at least one run; give one or more run folders")
    runs = prepare(results)
    with drawing():
        figures = sections(runs)
        every = [picture for section in figures.values() for picture in section]
        return write_page(folder, {NAME: page(runs, figures, formats)}, every, formats)


@dataclass(frozen=True)
class LiveProgress:
    """Refresh of the page of a running run.

    Attributes:
        seconds: interval after which the page reloads.
        written: when it was written.
        patience: seconds without a newer page after which it considers the run ended, and stops
            reloading.
    """

    seconds: int
    written: datetime
    patience: float


def refresh(result: Result, folder: Path, live: LiveProgress | None) -> Path:
    """Write the ``report.html`` of a running run, which reloads itself; with None it no longer
    does.

    Of its figures it has the curves; the others are left to ``write``.

    Raises:
        StorageError: ``folder`` cannot be written.
    """
    runs = prepare([result])
    with drawing():
        return write_page(folder, {NAME: page(runs, running(runs[0]), live=live)})


def page(
    runs: list[Run],
    figures: Figures | None = None,
    formats: Sequence[str] = (),
    live: LiveProgress | None = None,
) -> str:
    """Return the page: its text, tables and figures. Call it inside ``plot.drawing`` if it has
    some.
    """
    figures = figures or {}
    rows, code = distinct(table([run.result for run in runs])), script()
    gains, tables = [*map(bounded, gain_tables(runs))], client_tables(runs)
    chapters = [(anchor, heading) for anchor, heading in SECTIONS.items() if figures.get(anchor)]
    asides = _asides(runs)
    links = _links(gains, chapters, tables, asides, formats)
    return render(
        "report.html.jinja",
        title=narrative.title(runs),
        first=links[0][0],
        links=links,
        headline=headline(runs),
        verdicts=verdicts(runs),
        setup=narrative.setup(runs),
        cautions=[] if live else cautions(runs),
        progress=narrative.progress(runs[0], live.written) if live else "",
        live=live,
        summary=rows,
        columns=summary_columns(rows),
        fewer=fewer(runs),
        metric_named=metric_named,
        metrics=list(dict.fromkeys(run.metric for run in runs)),
        nothing=PLACEHOLDER,
        size=size,
        stage_name=stage_name,
        gains=gains,
        sections=chapters,
        omitted=omitted_quantities(runs),
        tables=tables,
        asides=asides,
        ranked=len(runs) > 1 and comparable(runs),
        labels=[run.label for run in runs],
        settings=settings(runs),
        figures=figures,
        formats=formats,
        script=code,
        digest=f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}",
    )


def omitted_quantities(runs: list[Run]) -> list[str]:
    """Report what is too large for a figure, and the file that contains it."""
    matrices = [
        f"{run.label}: “{name}”, with a number for each pair of {n:,} clients, is drawn only up "
        f"to {MATRIX} clients; events.jsonl in the run's folder has it."
        for run in runs
        for name, n in too_large(run).items()
    ]
    numbers = [
        f"{run.label}: numbers beyond {LARGEST:.2g} ({large:,} of them) are drawn at that limit; "
        "events.jsonl in the run's folder has them."
        for run in runs
        if (large := _beyond(run.result))
    ]
    return matrices + numbers


def _beyond(result: Result) -> int:
    """Count the numbers that are too large to be drawn."""
    evaluated = [values for e in result.evaluations for values in (e.value, e.loss)]
    recorded = [matrix for row in result.rounds for matrix in (row.loss, *row.info.values())]
    return sum(
        int((np.abs(np.array(values, float)) > LARGEST).sum()) for values in evaluated + recorded
    )


def _links(
    gains: list[Table],
    chapters: list[Link],
    tables: Sequence["ClientTable"],
    asides: list[Table],
    formats: Sequence[str],
) -> list[Link]:
    """Return the sections of the page, in order."""
    outcome = [(anchor, heading) for anchor, heading in chapters if anchor == "outcome"]
    return [
        ((gains[0].name, gains[0].title) if gains else ("summary", "Results")),
        *outcome,
        *([("clients-table", "Numbers by client")] if tables or len(gains) > 1 else []),
        ("sure", "How sure is this?"),
        *(chapter for chapter in chapters if chapter not in outcome),
        *([("summary", "All results and their cost")] if gains else []),
        *((t.name, t.title) for t in asides),
        ("settings", "Settings"),
        *([("files", "Figures as files")] if formats else []),
    ]


def _asides(runs: list[Run]) -> list[Table]:
    """Return the tables that only some runs have."""
    tables = (labels, regions, subgroups, participation, unseen, liars, privacy, notes)
    judged = [*outcome_tables(runs), *survival_table(runs), coefficients.of_runs(runs)]
    every = [*judged, *(table_of(runs) for table_of in tables)]
    return [bounded(table) for table in every if table.rows]


def script() -> Markup:
    """Return the page's script."""
    source = (files("pomona.results") / "web" / "page.js").read_text(encoding="utf-8")
    return Markup(source)  # noqa: S704 - the package's own file


def summary_columns(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the summary's columns with a number, and the best headline value of each (set in
    bold).
    """
    names = ("last", "test_at_best_validation", "best_on_test", "pooled", "worst", "percentile_10")
    metrics = {row["metric"] for row in rows}
    best = metric_named(next(iter(metrics))).best if len(metrics) == 1 else lambda _: None
    present = [name for name in names if any(row[name] is not None for row in rows)]
    return {name: best(row[name] for row in rows if row["headline"]) for name in present}


def bounded(table: Table) -> Table:
    """Limit a table to ``MOST_ROWS`` rows, with a note on the others."""
    rows = len(table.rows)
    if rows <= MOST_ROWS:
        return table
    note = (
        f"The first {MOST_ROWS} of {rows:,} rows; clients.csv and predictions.npz in the run's "
        "folder have the numbers of all."
    )
    return replace(table, rows=table.rows[:MOST_ROWS], notes=[*table.notes, note])


def fewer(runs: list[Run]) -> str:
    """Note that the verdict is over fewer clients than the means in the summary; empty if it is
    not.
    """
    contest = contest_of([run for run in over_seeds(runs) if run.mean is not None])
    return fewer_clients(contest.gains) if contest else ""


@dataclass(frozen=True)
class ClientTable:
    """The final metrics of a run's clients: ``rows`` of (name, [(value, small print)]); ``open``:
    initially expanded.

    With more than ``MOST_ROWS`` clients, the worst ones; ``omitted``: the number of others.
    """

    run: Run
    open: bool
    headings: list[str]
    rows: list[tuple[str, list[tuple[str, str]]]]
    omitted: int

    @property
    def round(self) -> int | None:
        """The round of the models."""
        return self.run.reported.round if self.run.reported else None


def client_tables(runs: list[Run]) -> list[ClientTable]:
    """Return a table with one row per client for each run with final metrics."""
    best = contender([run for run in runs if run.mean is not None]) or runs[0]
    return [
        _client_table(run, evaluations, run is best)
        for run in runs
        if (evaluations := records(run))
    ]


def _client_table(run: Run, evaluations: list[dict[str, Any]], expanded: bool) -> ClientTable:
    # The headline metric comes first, with its interval.
    columns = {run.metric.name: run.metric, **EVERY_METRIC}
    metrics = [
        metric
        for name, metric in columns.items()
        if any(r.get(name) is not None for r in evaluations)
    ]
    train = (run.result.about.get("sizes") or {}).get("train") or []
    headings = ["Train samples"] * bool(train) + [
        "Test samples",
        *(capital(m.heading) for m in metrics),
    ]
    after = len(headings) - len(metrics) + 1  # the headline metric
    headings[after:after] = elsewhere.headings(run)
    rows = []
    worst = (
        evaluations
        if len(evaluations) <= MOST_ROWS
        else sorted(evaluations, key=lambda r: _goodness(run, r))[:MOST_ROWS]
    )
    for record in worst:
        client, samples = int(record["client"]), record.get("samples")
        sizes = [train[client] if client < len(train) else None] * bool(train) + [samples]
        values = [*map(_size, sizes), *(_cell(metric, record) for metric in metrics)]
        values[after:after] = elsewhere.cells(run, client)
        rows.append((run.client(client), values))
    return ClientTable(run, expanded, headings, rows, len(evaluations) - len(rows))


def _goodness(run: Run, record: dict[str, Any]) -> float:
    """Return a client's result, more is better; those without a value come last."""
    value = record.get(run.metric.name)
    return inf if value is None else run.metric.goodness(value)


def _size(samples: int | None) -> tuple[str, str]:
    return (PLACEHOLDER if samples is None else f"{samples:,}", "")


def _cell(metric: Metric, record: dict[str, Any]) -> tuple[str, str]:
    """Return a client's value of a metric, and its interval if there is one."""
    value, bounds = record.get(metric.name), (record.get("intervals") or {}).get(metric.name)
    if value is None:
        return PLACEHOLDER, ""
    text, *limits = metric.numbers([value, *(bounds or ())])
    return text.replace("-", MINUS), " to ".join(limits).replace("-", MINUS)


def settings(runs: list[Run]) -> tuple[list[Setting], list[Setting]]:
    """Return (key, value of each run, whether they differ) for every setting and recorded fact, in
    two parts.

    First the important settings: those that differ between the runs or from the defaults of a run's
    method, data, partition and network, and the names of these. Then all others.
    """
    chosen = [flat(run.result.config) for run in runs]
    merged = [mine | _facts(run) for run, mine in zip(runs, chosen, strict=True)]
    keys = dict.fromkeys(chain(*chosen, *map(_facts, runs)))
    lines = [
        (key, [_text(mine[key]) if key in mine else PLACEHOLDER for mine in merged]) for key in keys
    ]
    important = {f"{section}.name" for section in TABLES}.union(*map(_chosen, runs))
    important.update(
        key
        for key, values in lines
        if key[:7] != "record." and len(set(values) - {PLACEHOLDER}) > 1
    )
    groups: tuple[list[Setting], list[Setting]] = [], []
    for key, values in lines:
        groups[key not in important].append((key, values, len(set(values)) > 1))
    return groups


def _chosen(run: Run) -> Iterable[str]:
    """Return the keys that differ from the defaults; all if they are not on record."""
    return run.result.about.get("chosen") or flat(run.result.config)


def _facts(run: Run) -> dict[str, Any]:
    """Return the recorded facts that a reader needs to repeat a run, by key."""
    metadata = run.result.about
    return flat(
        {f"record.{name}": metadata[name] for name in FACTS if metadata.get(name) is not None}
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
