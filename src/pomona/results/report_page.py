"""The page: one HTML file that needs nothing else, and the figures beside it."""

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pomona.core.errors import ConfigError, StorageError
from pomona.metrics.metric import METRICS, Metric
from pomona.record.record import Result
from pomona.results.figures import clients
from pomona.results.figures.figure import FORMS, ReportFigure
from pomona.results.figures.folder import save
from pomona.results.figures.sections import SECTIONS, pictures
from pomona.results.figures.style import drawing
from pomona.results.page_data import Json, LiveProgress, payload
from pomona.results.run_numbers import NOTHING, Run, comparable, distinct, flat, headline, leader, spoken, table
from pomona.results.run_numbers import runs as prepare
from pomona.results.tables.gains import gain_tables
from pomona.results.tables.per_label import labels
from pomona.results.tables.unseen_and_privacy import privacy, unseen
from pomona.results.text import narrative
from pomona.results.text.cautions import cautions
from pomona.results.text.verdicts import verdicts
from pomona.storage.atomic_io import publish

NAME = "report.html"
SCRIPTS = ("base", "lines", "maps", "bars", "panels", "learned", "page", "tables")
"""The page's own scripts, in the order in which they build on each other."""
OTHERS = {
    "subset_accuracy": Metric("subset_accuracy", "all labels right", higher=True, percent=True),
    "ece": Metric("ece", "calibration error", higher=False, percent=True),
}
"""Figures of the last models that no run is judged by."""
FACTS = ("data", "model", "parameters", "partition_sha256", "versions")
"""What the start event says about a run beyond its settings, as far as a reader needs it to repeat the run."""


def write(results: list[Result], out: Path) -> Path:
    """Write ``out/report.html``, and every figure in ``out/figures``; return the path of the page.

    One result gives the report of a run, several a comparison. A figure whose numbers were not recorded is left out.
    Figures that an earlier call wrote into the same folder, and this one does not, are deleted.

    Raises:
        ConfigError: there is no result.
        StorageError: ``out`` cannot be written.
    """
    if not results:
        raise ConfigError("a report needs at least one run; give one or more run folders")
    runs = prepare(results)
    with drawing():
        drawn = pictures(runs)
        try:
            save(drawn, out / "figures")
        except OSError as fault:
            raise _unwritable(out, fault) from fault
    return _publish(render(runs, drawn, None), out)


def refresh(result: Result, out: Path, live: LiveProgress | None) -> Path:
    """Write ``out/report.html`` of a run that is going on, which reads itself again; with None it does not any more.

    The page draws its own figures; the pictures are left to ``write``.

    Raises:
        StorageError: ``out`` cannot be written.
    """
    return _publish(render(prepare([result]), [], live), out)


def _publish(html: str, out: Path) -> Path:
    """Put the page in its place; a reader sees the old one or the new one, never a half."""
    try:
        return publish(out, [html.encode("utf-8")], lambda _: NAME)
    except OSError as fault:
        raise _unwritable(out, fault) from fault


def render(runs: list[Run], drawn: list[ReportFigure], live: LiveProgress | None) -> str:
    """The page: its words and tables, its numbers, and the scripts that draw them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pomona", "results"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"spoken": spoken, "whole": whole}
    data, code = payload(runs, live), script()
    rows = distinct(table([run.result for run in runs]))
    return environment.get_template("page.html.jinja").render(
        title=narrative.title(runs),
        verdicts=verdicts(runs),
        setup=narrative.setup(runs),
        cautions=[] if live else cautions(runs),
        progress=narrative.progress(runs[0], live.written) if live else "",
        live=live,
        summary=rows,
        columns=summary_columns(rows),
        metrics=METRICS,
        judges=list(dict.fromkeys(run.metric for run in runs)),
        nothing=NOTHING,
        gains=gain_tables(runs),
        sections=sections(data),
        tables=client_tables(runs),
        asides=[table for table in (labels(runs), unseen(runs), privacy(runs)) if table.rows],
        ranked=len(runs) > 1 and comparable(runs),
        labels=[run.label for run in runs],
        settings=settings(runs),
        pictures=drawn,
        forms=FORMS,
        data=embedded(data),
        script=code,
        digest=f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}",
    )


def whole(text: str) -> Markup:
    """A text whose words with a hyphen stay on one line as long as they fit there: FedAvg-FT is one name."""
    word = Markup('<span class="whole">{}</span>')
    return Markup(" ").join(word.format(part) if "-" in part else part for part in text.split(" "))


def script() -> Markup:
    """The page's script: everything in one scope of its own."""
    folder = files("pomona.results") / "web"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return Markup("".join(['"use strict";\n(() => {\n', *parts, "})();\n"]))  # noqa: S704 - the package's own files


def embedded(data: Json) -> Markup:
    """A JSON object as it may stand inside a script element: no tag or comment can begin or end in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 - holds none of HTML's signs any more


def sections(data: Json) -> list[tuple[str, str]]:
    """(anchor, heading) of the parts that have something to draw."""
    runs = data["runs"]
    known = {
        "training": any(run["rounds"] or run["views"] for run in runs),
        "outcome": any(run["views"] for run in runs),
        "learned": any(run["learned"] for run in runs),
        "data": bool(data["partitions"]),
    }
    return [(anchor, heading) for anchor, heading in SECTIONS.items() if known[anchor]]


def _unwritable(out: Path, fault: OSError) -> StorageError:
    return StorageError(f"cannot write the report to {out} ({fault.strerror}); give another folder")


def summary_columns(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """The columns of values in the summary that hold a number, and the best headline value of each (set in bold)."""
    names = ("last", "best_on_validation", "best_on_test", "pooled", "worst", "percentile_10")
    metrics = {row["metric"] for row in rows}
    best = METRICS[next(iter(metrics))].best if len(metrics) == 1 else lambda _: None
    held = [name for name in names if any(row[name] is not None for row in rows)]
    return {name: best(row[name] for row in rows if row["headline"]) for name in held}


def client_tables(runs: list[Run]) -> list[dict[str, Any]]:
    """For each run with final metrics: its label, the model, column headings, and a row a client."""
    found = []
    for run in runs:
        records = clients.records(run)
        key = headline(run.result)
        if not records or key is None:
            continue
        # What the run is judged by comes first, with its interval.
        columns = {run.metric.name: run.metric, **METRICS, **OTHERS}
        given = [metric for name, metric in columns.items() if any(r.get(name) is not None for r in records)]
        train = (run.result.about.get("sizes") or {}).get("train") or []
        found.append(
            {
                "label": run.label,
                "model": run.model,
                "round": run.result.rounds[-1].round if run.result.rounds else None,
                "open": len(runs) == 1 or run is leader(runs),
                "headings": [
                    *(["Train samples"] if train else []),
                    "Test samples",
                    *(narrative.capital(m.heading) for m in given),
                ],
                "rows": [
                    (
                        run.client(int(r["client"])),
                        [
                            *([(_count(train, int(r["client"])), "")] if train else []),
                            (f"{r['samples']:,}" if r.get("samples") is not None else NOTHING, ""),
                            *(_cell(m, r) for m in given),
                        ],
                    )
                    for r in records
                ],
            }
        )
    return found


def _cell(metric: Metric, record: dict[str, Any]) -> tuple[str, str]:
    """A client's value of a metric, and its interval where there is one."""
    value, bounds = record.get(metric.name), (record.get("intervals") or {}).get(metric.name)
    shown = NOTHING if value is None else metric.number(value)
    return shown, " to ".join(metric.number(b) for b in bounds) if bounds else ""


def _count(sizes: list[int], client: int) -> str:
    return f"{sizes[client]:,}" if client < len(sizes) else NOTHING


def settings(runs: list[Run]) -> list[tuple[str, list[str], bool]]:
    """(key, value of each run, whether they differ) for every setting and every recorded fact."""
    chosen = [dict(flat(run.result.config)) for run in runs]
    facts = [
        dict(flat({f"record.{k}": v for k in FACTS if (v := run.result.about.get(k)) is not None})) for run in runs
    ]
    each = [mine | recorded for mine, recorded in zip(chosen, facts, strict=True)]
    keys = dict.fromkeys(key for mine in chosen + facts for key in mine)
    lines = [(key, [_text(mine[key]) if key in mine else NOTHING for mine in each]) for key in keys]
    return [(key, values, len(set(values)) > 1) for key, values in lines]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
