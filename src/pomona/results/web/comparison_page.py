"""The comparison page, also as Markdown, CSV and LaTeX."""

import json
from collections.abc import Sequence
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
from pomona.results.tables import by_client, comparison_tables, cost, gains_of_bench
from pomona.results.tables.latex import latex
from pomona.results.text import cautions
from pomona.results.text.discussion import sentences, shared
from pomona.results.web.page_writer import FIGURES, render, write_page
from pomona.results.wording import capital

PAGE, TEXT, LATEX, RECORDS = "comparison.html", "comparison.md", "comparison.tex", "comparison.csv"


def write(
    bench: Bench, out: Path, forms: Sequence[str] = (), reference: Reference | None = None
) -> Path:
    """Write ``comparison.html``, ``.md``, ``.tex`` and ``.csv`` into a folder; return the page's
    path.

    The page embeds its figures. With forms, of ``FORMATS``, they are also files in ``figures/``.
    Ours stand beside the reference numbers, those that the bench's suite names if none are given.

    Raises:
        ConfigError: the reference numbers are of another metric.
        StorageError: ``out`` cannot be written.
    """
    made = comparison(bench, reference)
    ranked = rank(made)
    tables = _tables(made, ranked)
    warned = cautions.of_bench(made)
    with drawing():
        pictures = _pictures(made, ranked)
        texts = {
            TEXT: _markdown(made, tables, warned, pictures if "png" in forms else []),
            LATEX: "\n".join(latex(table) for table in tables if table.rows),
            RECORDS: csv_text(comparison_tables.records(made)),
            PAGE: _html(made, tables, warned, pictures, forms),
        }
        return write_page(out, texts, pictures, forms)


def rank(made: Comparison) -> significance.Ranking | None:
    """Rank methods over the columns in which all have a result; None for fewer than two methods or
    columns.

    Methods without a result in some finished column are excluded, and columns without any result.
    """
    done = _with_results(made)
    full = [m for m in made.methods if all(m in column for column in done)]
    values = [[_goodness(column[m], made) for m in full] for column in done]
    known = [line for line in values if None not in line]
    if len(full) < 2 or len(known) < 2:
        return None
    return significance.ranking([done[0][m].row for m in full], np.array(known, dtype=np.float64))


def _with_results(made: Comparison) -> list[dict[str, ComparisonRow]]:
    """Return the entries with results of each column that has some, by method."""
    columns = [{e.method: e for e in made.of(s) if e.cells} for s in made.scenarios]
    return [column for column in columns if column]


def _goodness(entry: ComparisonRow, made: Comparison) -> float | None:
    """Return the mean over seeds of a method's metric; more is better."""
    own = made.ours(entry)
    return entry.metric.goodness(own.mean) if own else None


def _tables(made: Comparison, ranked: significance.Ranking | None) -> list[Table]:
    found = [
        comparison_tables.grid(made),
        comparison_tables.moments(made),
        gains_of_bench.gains_table(made),
        comparison_tables.rank_table(ranked) if ranked else None,
        significance.wilcoxon_table(made),
        by_client.spread_table(made),
        by_client.clients_table(made),
        cost.cost_table(made),
        cost.speed_table(made),
        comparison_tables.privacy(made),
        comparison_tables.chosen(made),
    ]
    return [table for table in found if table]


def _pictures(made: Comparison, ranked: significance.Ranking | None) -> list[ReportFigure]:
    found = [
        comparison_figures.diagram(ranked) if ranked else None,
        *comparison_figures.ablations(made),
    ]
    found += [comparison_figures.curves(made, s) for s in made.scenarios]
    found += [comparison_figures.gains_by_client(made, s) for s in made.scenarios]
    return distinct([picture for picture in found if picture])


def opening(made: Comparison) -> list[str]:
    """Describe the page, in sentences."""
    own = made.bench.results
    counts = made.bench.counts
    states = ", ".join(f"{n} {state}" for state, n in counts.items())
    seeds = ", ".join(map(str, own["seeds"]))
    about = f"Size {own['size']}, seeds {seeds}; runs: {states}."
    source = ""
    if known := made.reference:
        about = f"{capital(known.title)} beside ours. {about}"
        source = f"Source of the {known.label}'s numbers: {known.source}." if known.source else ""
    return [text for text in (about, still_to_run(own), own["note"], source) if text]


def _versions(made: Comparison) -> list[str]:
    return [
        ", ".join(f"{k} {v}" for k, v in versions.items())
        for versions in made.bench.results["versions"]
    ]


def _markdown(
    made: Comparison, tables: list[Table], warned: list[str], pictures: list[ReportFigure]
) -> str:
    parts = [f"# {made.bench.results['title']}", *opening(made)]
    differences = [
        f"**{column}**\n\n" + "\n".join(f"- {line}" for line in lines)
        for column, lines in sentences(made)
        if lines
    ]
    parts += ["## Where ours differs, and why", *differences] if differences else []
    texts = [markdown(table).rstrip() for table in tables]
    texts[1:1] = ["\n".join(f"- {line}" for line in warned)] if warned else []
    parts += texts
    parts += [
        f"## {p.title}\n\n![{p.alt}]({FIGURES}/{p.name}.png)\n\n{p.caption}" for p in pictures
    ]
    settings = "\n".join(f"{key} = {_text(value)}" for key, value in shared(made).items())
    parts += ["## Settings that all runs have", f"```toml\n{settings}\n```"] if settings else []
    parts += [f"Made with {line}." for line in _versions(made)]
    return "\n\n".join(parts) + "\n"


def _html(
    made: Comparison,
    tables: list[Table],
    warned: list[str],
    pictures: list[ReportFigure],
    forms: Sequence[str],
) -> str:
    differences = [(column, lines) for column, lines in sentences(made) if lines]
    links = [(table.name, table.title) for table in tables]
    links[1:1] = [("differences", "Where ours differs")] if differences else []
    links += [("figures", "Figures")] if pictures else []
    settings = [[key, _text(value)] for key, value in shared(made).items()]
    return render(
        "comparison.html.jinja",
        title=made.bench.results["title"],
        first="differences" if differences else links[0][0],
        links=[*links, ("settings", "Settings")],
        opening=opening(made),
        differences=differences,
        tables=tables,
        cautions=warned,
        pictures=[(p, p.png()) for p in pictures],
        settings=Table(
            "settings", "Settings that all runs have", [], ["setting", "value"], settings, range(2)
        ),
        versions=_versions(made),
        files=[TEXT, LATEX, RECORDS, *([FIGURES + "/"] if forms else [])],
    )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
