"""The comparison page, and the same as Markdown, CSV and LaTeX, with its figures as PNG, SVG and PDF, beside it."""

import base64
import io
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from pomona.core.errors import StorageError
from pomona.experiments import Bench
from pomona.results.comparison import Comparison, comparison, spread
from pomona.results.figures import bench_figures
from pomona.results.figures.figure import ReportFigure
from pomona.results.figures.style import drawing
from pomona.results.paper_tables import NAMES
from pomona.results.significance import Ranking, ranking
from pomona.results.tables import bench_tables, client_tests, cost
from pomona.results.tables.table import Sheet
from pomona.results.text.discussion import sentences, shared
from pomona.storage.atomic_io import publish

PAGE, TEXT, LATEX, RECORDS, FIGURES = "comparison.html", "comparison.md", "comparison.tex", "comparison.csv", "figures"


def write(bench: Bench, out: Path) -> Path:
    """Write ``comparison.html``, ``.md``, ``.tex``, ``.csv`` and ``figures/`` into a folder; return the page's path.

    Raises:
        StorageError: ``out`` cannot be written.
    """
    made = comparison(bench)
    ranked = rank(made)
    tables = _tables(made, ranked)
    with drawing():
        pictures = _pictures(made, ranked)
        try:
            (out / FIGURES).mkdir(parents=True, exist_ok=True)
            for picture in pictures:
                picture.save(out / FIGURES)
            page = _html(made, tables, pictures)
            texts = {
                TEXT: _markdown(made, tables, pictures),
                LATEX: "\n".join(table.latex() for table in tables),
                RECORDS: bench_tables.records(made).csv(),
            }
            for name, text in texts.items():
                _publish(out, name, text)
            return _publish(out, PAGE, page)
        except OSError as fault:
            raise StorageError(
                f"cannot write into {out} ({fault.strerror}); make room or give another --out"
            ) from fault


def _publish(out: Path, name: str, text: str) -> Path:
    return publish(out, [text.encode("utf-8")], lambda _: name)


def rank(made: Comparison) -> Ranking | None:
    """Ranks over the columns in which all ranked methods have a result; None for fewer than two of either.

    Methods that have none in some finished column are left out, columns without any result too.
    """
    columns = [s for s in made.scenarios if any(e.cells for e in made.of(s))]
    full = [m for m in made.methods if all((e := made.at(s, m)) and e.cells for s in columns)]
    values = [[spread(e.values(made.count)) if (e := made.at(s, m)) else None for m in full] for s in columns]
    metrics = [next(e.metric for e in made.of(s) if e.cells) for s in columns]
    known = [[metric.goodness(v.mean) for v in line if v] for metric, line in zip(metrics, values, strict=True)]
    known = [line for line in known if len(line) == len(full)]
    if len(full) < 2 or len(known) < 2:
        return None
    names = [next(e.row for e in made.entries if e.method == m) for m in full]
    return ranking(names, np.array(known))


def _tables(made: Comparison, ranked: Ranking | None) -> list[Sheet]:
    found = [
        bench_tables.grid(made),
        bench_tables.moments(made),
        bench_tables.rank_table(ranked) if ranked else None,
        client_tests.wilcoxon_table(made),
        client_tests.spread_table(made),
        cost.cost_table(made),
        bench_tables.privacy(made),
        bench_tables.chosen(made),
    ]
    return [table for table in found if table]


def _pictures(made: Comparison, ranked: Ranking | None) -> list[ReportFigure]:
    found = [bench_figures.diagram(ranked) if ranked else None, *bench_figures.ablations(made)]
    found += [bench_figures.curves(made, s) for s in made.scenarios]
    found += [bench_figures.who_benefits(made, s) for s in made.scenarios]
    return [picture for picture in found if picture]


def opening(made: Comparison) -> list[str]:
    """What the page shows, in sentences."""
    own = made.bench.results
    counts = made.bench.counts
    paper = (
        f"Table {own['table']} of the {NAMES[made.paper]} paper beside ours. "
        if made.paper in NAMES and own["table"]
        else ""
    )
    states = ", ".join(f"{n} {state}" for state, n in counts.items())
    seeds = ", ".join(map(str, own["seeds"]))
    return [f"{paper}Size {own['size']}, seeds {seeds}; runs: {states}.", *([own["note"]] if own["note"] else [])]


def _versions(made: Comparison) -> list[str]:
    return [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in made.bench.results["versions"]]


def _markdown(made: Comparison, tables: list[Sheet], pictures: list[ReportFigure]) -> str:
    parts = [f"# {made.bench.results['title']}", *opening(made), "## Where ours differs, and why"]
    parts += [
        f"**{column}**\n\n" + "\n".join(f"- {line}" for line in lines) for column, lines in sentences(made) if lines
    ]
    parts += [table.markdown().rstrip() for table in tables]
    parts += [f"## {p.title}\n\n![{p.alt}]({FIGURES}/{p.name}.png)\n\n{p.caption}" for p in pictures]
    settings = "\n".join(f"{key} = {_text(value)}" for key, value in shared(made).items())
    parts += ["## Settings that all runs have", f"```toml\n{settings}\n```"] if settings else []
    parts += [f"Made with {line}." for line in _versions(made)]
    return "\n\n".join(parts) + "\n"


def _html(made: Comparison, tables: list[Sheet], pictures: list[ReportFigure]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pomona", "results"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    context: Mapping[str, Any] = {
        "css": (files("pomona.results") / "page.css").read_text(encoding="utf-8"),
        "title": made.bench.results["title"],
        "opening": opening(made),
        "differences": [(column, lines) for column, lines in sentences(made) if lines],
        "tables": tables,
        "pictures": [(p, _inline(p)) for p in pictures],
        "settings": [(key, _text(value)) for key, value in shared(made).items()],
        "versions": _versions(made),
        "files": [TEXT, LATEX, RECORDS, FIGURES + "/"],
    }
    return environment.get_template("comparison.html.jinja").render(**context)


def _inline(picture: ReportFigure) -> str:
    """The drawing as an address that needs no other file, on white: it stays readable on a dark page."""
    data = io.BytesIO()
    picture.figure.savefig(data, format="png", dpi=110, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
