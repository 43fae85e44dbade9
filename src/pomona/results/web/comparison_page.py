"""The comparison page, also as Markdown, CSV and LaTeX."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pomona.core.table import Table, csv_text, markdown
from pomona.experiments import Bench
from pomona.experiments.bench_table import still_to_run
from pomona.experiments.reference import Reference
from pomona.results import significance
from pomona.results.comparison import Comparison, ComparisonRow, comparison
from pomona.results.figures import comparison_figures
from pomona.results.figures.plot import ReportFigure, drawing
from pomona.results.figures.sections import distinct
from pomona.results.tables import by_client, comparison_tables, cost
from pomona.results.tables.latex import latex
from pomona.results.text import cautions
from pomona.results.text.discussion import heading, sentences, shared
from pomona.results.web.page_writer import FIGURES, render, write_page
from pomona.results.wording import capital

PAGE, TEXT, LATEX, RECORDS = "comparison.html", "comparison.md", "comparison.tex", "comparison.csv"


def write(
    bench: Bench, folder: Path, formats: Sequence[str] = (), reference: Reference | None = None
) -> Path:
    """Write ``comparison.html``, ``.md``, ``.tex`` and ``.csv`` into a folder; return the page's
    path.

    The page embeds its figures. With formats, of ``FORMATS``, they are also files in ``figures/``.
    Ours are next to the reference numbers, by default those that the bench's suite names.

    Raises:
        ConfigError: the reference numbers are of another metric.
        StorageError: ``folder`` cannot be written.
    """
    compared = comparison(bench, reference)
    ranked = rank(compared)
    tables = _tables(compared, ranked)
    warnings = cautions.bench_cautions(compared)
    with drawing():
        pictures = _pictures(compared, ranked)
        texts = {
            TEXT: _markdown(compared, tables, warnings, pictures if "png" in formats else []),
            LATEX: "\n".join(latex(table) for table in tables if table.rows),
            RECORDS: csv_text(comparison_tables.records(compared)),
            PAGE: _html(compared, tables, warnings, pictures, formats),
        }
        return write_page(folder, texts, pictures, formats)


def rank(comparison: Comparison) -> significance.Ranking | None:
    """Rank methods over the columns in which all have a result; None for fewer than two methods or
    columns.

    Methods without a result in some finished column are excluded, and columns without any result.
    """
    columns = _with_results(comparison)
    complete = [m for m in comparison.methods if all(m in column for column in columns)]
    values = [[_goodness(column[m], comparison) for m in complete] for column in columns]
    blocks = [line for line in values if None not in line]
    if len(complete) < 2 or len(blocks) < 2:
        return None
    return significance.ranking(
        [columns[0][m].row for m in complete], np.array(blocks, dtype=np.float64)
    )


def _with_results(comparison: Comparison) -> list[dict[str, ComparisonRow]]:
    """Return the entries with results of each column that has some, by method."""
    columns = [
        {e.method: e for e in comparison.in_scenario(s) if e.cells} for s in comparison.scenarios
    ]
    return [column for column in columns if column]


def _goodness(entry: ComparisonRow, comparison: Comparison) -> float | None:
    """Return the mean over seeds of a method's metric; more is better."""
    spread = comparison.ours(entry)
    return entry.metric.goodness(spread.mean) if spread else None


def _tables(comparison: Comparison, ranked: significance.Ranking | None) -> list[Table]:
    tables = [
        comparison_tables.grid(comparison),
        comparison_tables.moments(comparison),
        by_client.gains_table(comparison),
        comparison_tables.rank_table(ranked) if ranked else None,
        significance.wilcoxon_table(comparison),
        by_client.spread_table(comparison),
        by_client.clients_table(comparison),
        cost.cost_table(comparison),
        cost.speed_table(comparison),
        comparison_tables.privacy(comparison),
        comparison_tables.chosen(comparison),
    ]
    return [table for table in tables if table]


def _pictures(comparison: Comparison, ranked: significance.Ranking | None) -> list[ReportFigure]:
    pictures = [
        comparison_figures.diagram(ranked) if ranked else None,
        *comparison_figures.ablations(comparison),
    ]
    pictures += [comparison_figures.curves(comparison, s) for s in comparison.scenarios]
    pictures += [comparison_figures.gains_by_client(comparison, s) for s in comparison.scenarios]
    return distinct([picture for picture in pictures if picture])


def opening(comparison: Comparison) -> list[str]:
    """Describe the page, in sentences."""
    results = comparison.bench.results
    counts = comparison.bench.counts
    states = ", ".join(f"{n} {state}" for state, n in counts.items())
    seeds = ", ".join(map(str, results["seeds"]))
    summary = f"Size {results['size']}, seed{'s' * (', ' in seeds)} {seeds}; runs: {states}."
    source = ""
    if reference := comparison.reference:
        summary = f"{capital(reference.title)} next to ours. {summary}"
        if reference.source:
            source = f"Source of the {reference.label}'s numbers: {reference.source}."
    return [text for text in (summary, still_to_run(results), results["note"], source) if text]


def _versions(comparison: Comparison) -> list[str]:
    return [
        ", ".join(f"{k} {v}" for k, v in versions.items())
        for versions in comparison.bench.results["versions"]
    ]


def _markdown(
    comparison: Comparison, tables: list[Table], warnings: list[str], pictures: list[ReportFigure]
) -> str:
    sections = [f"# {comparison.bench.results['title']}", *opening(comparison)]
    differences = [
        f"**{column}**\n\n{_bullets(lines)}" for column, lines in sentences(comparison) if lines
    ]
    sections += [f"## {heading(comparison)}", *differences] if differences else []
    texts = [markdown(table).rstrip() for table in tables]
    texts[1:1] = [_bullets(warnings)] if warnings else []
    sections += texts
    sections += [
        f"## {p.title}\n\n![{p.alt}]({FIGURES}/{p.name}.png)\n\n{p.caption}" for p in pictures
    ]
    settings = "\n".join(f"{key} = {_text(value)}" for key, value in shared(comparison).items())
    sections += ["## Settings of all runs", f"```toml\n{settings}\n```"] if settings else []
    sections += [f"Made with {line}." for line in _versions(comparison)]
    return "\n\n".join(sections) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _html(
    comparison: Comparison,
    tables: list[Table],
    warnings: list[str],
    pictures: list[ReportFigure],
    formats: Sequence[str],
) -> str:
    differences = [(column, lines) for column, lines in sentences(comparison) if lines]
    links = [(table.name, table.title) for table in tables]
    links[1:1] = [("differences", heading(comparison))] if differences else []
    links += [("figures", "Figures")] if pictures else []
    settings = [[key, _text(value)] for key, value in shared(comparison).items()]
    return render(
        "comparison.html.jinja",
        title=comparison.bench.results["title"],
        first="differences" if differences else links[0][0],
        links=[*links, ("settings", "Settings")],
        opening=opening(comparison),
        differences=differences,
        heading=heading(comparison),
        tables=tables,
        cautions=warnings,
        pictures=pictures,
        settings=Table(
            "settings", "Settings of all runs", [], ["setting", "value"], settings, range(2)
        ),
        versions=_versions(comparison),
        files=[TEXT, LATEX, RECORDS, *([FIGURES + "/"] if formats else [])],
    )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
