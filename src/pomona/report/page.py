"""The page: one HTML file that needs nothing else, and the figures beside it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pomona.errors import ConfigError, StorageError
from pomona.record import Result
from pomona.report import clients, words
from pomona.report.folder import save
from pomona.report.numbers import NOTHING, Run, comparable, flat, headline, leader, percent, spoken, table
from pomona.report.numbers import runs as prepare
from pomona.report.sections import sections
from pomona.report.style import drawing

METRICS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "balanced_accuracy": ("Balanced acc. (%)", percent),
    "subset_accuracy": ("All labels right (%)", percent),
    "macro_f1": ("Macro F1 (%)", percent),
    "auroc": ("AUROC (%)", percent),
    "ece": ("ECE (%)", percent),
    "r2": ("R²", "{:.4f}".format),
    "mse": ("MSE", "{:.4g}".format),
    "mae": ("MAE", "{:.4g}".format),
    "loss": ("Loss", "{:.4f}".format),
}
FACTS = ("data", "model", "parameters", "partition_sha256", "versions")
"""What the start event says about a run beyond its settings, as far as a reader needs it to repeat the run."""


def write(results: list[Result], out: Path) -> Path:
    """Write ``out/report.html``, ``out/figures/NAME.png`` and ``out/figures/NAME.csv``; return the path of the page.

    One result gives the report of a run, several a comparison. A figure whose numbers were not recorded is left out.
    Figures that an earlier call wrote into the same folder, and this one does not, are deleted.

    Raises:
        ConfigError: there is no result.
        StorageError: ``out`` cannot be written.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not results:
        raise ConfigError("a report needs at least one run; give one or more run folders")
    environment = Environment(
        loader=PackageLoader("pomona", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "spoken": spoken}
    runs = prepare(results)
    with drawing():
        parts = sections(runs)
        html = environment.get_template("page.html.jinja").render(
            title=words.title(runs),
            opening=words.opening(runs),
            cautions=words.cautions(runs),
            summary=table(results),
            columns=summary_columns(table(results)),
            sections=parts,
            tables=client_tables(runs),
            ranked=len(runs) > 1 and comparable(runs),
            labels=[run.label for run in runs],
            settings=settings(runs),
        )
        page = out / "report.html"
        try:
            save([picture for part in parts for picture in part.pictures], out / "figures")
            page.write_text(html, encoding="utf-8")
        except OSError as fault:
            raise _unwritable(out, fault) from fault
    return page


def _unwritable(out: Path, fault: OSError) -> StorageError:
    return StorageError(f"cannot write the report to {out} ({fault.strerror}); give another folder")


def summary_columns(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share columns of the summary that hold a number, and the best headline value of each (set in bold)."""
    names = ("last", "best_on_validation", "best_on_test", "pooled", "worst", "percentile_10")
    known = {name: [r[name] for r in rows if r[name] is not None] for name in names}
    judged = {name: [r[name] for r in rows if r["headline"] and r[name] is not None] for name in names}
    return {name: max(judged[name], default=-1.0) for name in names if known[name]}


def client_tables(runs: list[Run]) -> list[dict[str, Any]]:
    """For each run with final metrics: its label, the model, column headings, and a row of texts a client."""
    tables = []
    for run in runs:
        records = clients.records(run)
        key = headline(run.result)
        if not records or key is None:
            continue
        given = [name for name in METRICS if any(r.get(name) is not None for r in records)]
        accurate = any(r.get("accuracy") is not None for r in records)
        train = (run.result.about.get("sizes") or {}).get("train") or []
        tables.append(
            {
                "label": run.label,
                "model": run.model,
                "round": run.result.rounds[-1].round if run.result.rounds else None,
                "open": len(runs) == 1 or run is leader(runs),
                "headings": [
                    *(["Train samples"] if train else []),
                    "Test samples",
                    *(["Accuracy (%)", "95 % interval"] if accurate else []),
                    *(METRICS[name][0] for name in given),
                ],
                "rows": [
                    (
                        run.client(int(r["client"])),
                        [
                            *([_count(train, int(r["client"]))] if train else []),
                            f"{r['samples']:,}" if r.get("samples") is not None else NOTHING,
                            *(
                                [percent(r.get("accuracy")), _interval((r.get("intervals") or {}).get("accuracy"))]
                                if accurate
                                else []
                            ),
                            *(METRICS[name][1](r[name]) if r.get(name) is not None else NOTHING for name in given),
                        ],
                    )
                    for r in records
                ],
            }
        )
    return tables


def _count(sizes: list[int], client: int) -> str:
    return f"{sizes[client]:,}" if client < len(sizes) else NOTHING


def _interval(bounds: list[float | None] | None) -> str:
    return " to ".join(percent(b) for b in bounds) if bounds else NOTHING


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
