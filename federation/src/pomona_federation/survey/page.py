"""A survey's page, also as Markdown, and the next study's section task, written next to its
result.
"""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from pydantic import ValidationError

from pomona.core.bounds import first
from pomona.core.errors import DataError
from pomona.core.table import MARKDOWN, Table, markdown
from pomona.core.toml import Tree
from pomona.data.preprocessing import Preprocessing, TableColumn
from pomona.data.targets import in_order
from pomona.data.text import FIRST_WORD
from pomona.results.web.page_writer import render, write_page
from pomona_federation.survey.raw_data import channel
from pomona_federation.survey.result import (
    SurveyResult,
    histogram,
    moments,
    nice_edges,
    pooled,
    pooled_names,
    quantile,
)
from pomona_federation.survey.settings import ColumnSpec, Numbers
from pomona_federation.survey.tables import tables

Moment = tuple[float, float]  # mean and deviation of a feature
UNKNOWN = (0.0, 1.0)


def task_of(result: SurveyResult) -> Tree:
    """The section, as ``[task]`` of an agreement; silos read their raw files by it.

    A table's gaps are always filled, with medians or the most frequent category, since a few gaps
    are not disclosed.

    Raises:
        DataError: too little was disclosed: no column of a table, fewer than two classes of labels,
            no event of survival times.
    """
    schema = result.data_schema
    task: dict[str, Any] = {
        "kind": schema.kind,
        "dtype": schema.dtype,
        "targets": schema.targets,
        **_targets(result),
    }
    if schema.kind == "table":
        try:
            return task | _table(result)
        except ValidationError as fault:
            raise DataError(f"the reported columns make no common table ({first(fault)})") from None
    if schema.kind == "text":
        counts = result.word_counts()
        vocabulary = sorted(counts, key=lambda token: (-counts[token], token))[
            : result.survey.words
        ]
        return task | {
            "input_shape": list(schema.shape),
            "words": vocabulary,
            "vocabulary": len(vocabulary) + FIRST_WORD,
        }
    shift, scale = zip(*(_channel(result, k) for k in range(schema.shape[-1])), strict=True)
    return task | {"input_shape": list(schema.shape), "shift": list(shift), "scale": list(scale)}


def _targets(result: SurveyResult) -> Tree:
    """The classes, or else the meaning of a network's outputs."""
    target_type, targets = result.data_schema.targets, result.targets()
    if target_type in {"classes", "segmentation"}:
        if len(result.classes) < 2:
            raise DataError(
                "fewer than two classes were reported, so there is nothing to learn; ask more silos"
            )
        return {"classes": list(result.classes), "outputs": len(result.classes)}
    if target_type == "survival":
        times = [column for by_silo in targets.values() for column in by_silo.values()]
        shares = np.arange(1, result.survey.intervals + 1) / result.survey.intervals
        edges = sorted({q.value for share in shares if (q := quantile(times, float(share), 1))})
        if not edges:
            raise DataError(
                "no silo reported enough events, so time has no intervals; ask more silos"
            )
        return {"time_edges": edges, "outputs": len(edges)}
    outputs: dict[str, Any] = {"outputs": len(targets)}
    if target_type == "regression":
        shift, scale = zip(
            *(_moments(pooled(by_silo.values())) for by_silo in targets.values()), strict=True
        )
        return outputs | {"target_shift": list(shift), "target_scale": list(scale)}
    return outputs


def _table(result: SurveyResult) -> Tree:
    columns: list[TableColumn] = []
    features: list[Moment] = []
    for spec in result.columns:
        build = _category if spec.kind == "category" else _number
        column, column_features = build(result, spec)
        columns.append(column)
        features += column_features
    if not features:
        raise DataError("no reported column could be a feature; ask more silos")
    layouts = {disclosure.columns.layout for disclosure in result.silos.values()}
    layout = layouts.pop() if len(layouts) == 1 else ()
    preprocessing = Preprocessing(columns=tuple(columns), layout=layout)
    shift, scale = zip(*features, strict=True)
    return {
        "input_shape": [preprocessing.width],
        "shift": list(shift),
        "scale": list(scale),
        "preprocessing": preprocessing.model_dump(mode="json", exclude_none=True),
    }


def _number(result: SurveyResult, spec: ColumnSpec) -> tuple[TableColumn, list[Moment]]:
    """A column of numbers or dates: gaps become its median, with a feature that flags them if some
    were disclosed.
    """
    by_silo = [*result.numbers(spec.name).values()]
    overall, median = pooled(by_silo), quantile(by_silo, 0.5, 1)
    fill = median.value if median else 0.0
    column = TableColumn(
        name=spec.name, kind=spec.kind, missing=spec.missing, fill=fill, flagged=overall.rest > 0
    )
    # a sum, outside any silo's bounds
    gaps = Numbers.model_construct(values=(fill,), counts=(overall.rest,), rest=0)
    filled = pooled([overall, gaps]) if overall.rest else overall
    return column, [_moments(filled) if median else UNKNOWN, *_flag(overall.rest, overall.rows)]


def _category(result: SurveyResult, spec: ColumnSpec) -> tuple[TableColumn, list[Moment]]:
    """A column of categories: one feature per category that is frequent enough in all silos'
    rows.
    """
    by_silo = result.names(spec.name).values()
    counts, undisclosed = pooled_names(by_silo), sum(column.rest for column in by_silo)
    rows = counts.total() + undisclosed
    values = in_order(
        name for name, n in counts.items() if n >= result.survey.category_share * rows
    )
    usual = max(values, key=lambda name: counts[name], default="")
    column = TableColumn(
        name=spec.name,
        kind="category",
        missing=spec.missing,
        fill=usual,
        flagged=undisclosed > 0,
        values=values,
    )
    shares = [_share(counts[name] + undisclosed * (name == usual), rows) for name in values]
    return column, [*shares, *_flag(undisclosed, rows)]


def _flag(undisclosed: int, rows: int) -> list[Moment]:
    return [_share(undisclosed, rows)] if undisclosed else []


def _share(n: int, rows: int) -> Moment:
    share = n / rows
    return share, sqrt(share * (1 - share)) or 1.0


def _moments(column: Numbers) -> Moment:
    """Mean and standard deviation; a deviation within rounding becomes 1, so that such a feature
    becomes 0.
    """
    stats = moments(column)
    if not stats:
        return UNKNOWN
    varies = stats.deviation > np.finfo(np.float32).eps * abs(stats.mean)
    return stats.mean, stats.deviation if varies else 1.0


def _channel(result: SurveyResult, k: int) -> Moment:
    """Mean and standard deviation of a channel's pixels, from the means over images of pixels and
    of their squares.
    """
    mean, square = (
        _moments(pooled(result.numbers(channel(k, statistic)).values()))[0]
        for statistic in ("mean", "square")
    )
    return mean, sqrt(max(square - mean**2, 0.0)) or 1.0


PAGE, TEXT, RESULT, TASK = "survey.html", "survey.md", "survey.json", "task.toml"
BINS = 20
WIDTH, HEIGHT = 200.0, 60.0  # size of a small histogram


def write(result: SurveyResult, file: Path) -> Path:
    """Write ``survey.html``, ``.md``, ``.json`` and, if enough was disclosed, ``task.toml``; return
    the page's path.

    Raises StorageError if ``out`` cannot be written.
    """
    try:
        task, problem = tomli_w.dumps({"task": task_of(result)}), ""
    except DataError as fault:
        task, problem = "", str(fault)
    texts = {RESULT: result.model_dump_json(indent=1) + "\n", **({TASK: task} if task else {})}
    page_tables = tables(result)
    lines = opening(result, problem)
    escaped = (line.translate(MARKDOWN) for line in lines)  # notes have names of columns
    sections = ["# Survey", *escaped, *(markdown(table).rstrip() for table in page_tables)]
    sections += ["## Section task of the next study", f"```toml\n{task}```"] if task else []
    return write_page(
        file,
        texts | {TEXT: "\n\n".join(sections) + "\n", PAGE: _html(result, page_tables, lines, task)},
    )


def opening(result: SurveyResult, problem: str = "") -> list[str]:
    """The page's subject and its caveats."""
    min_count = result.survey.least
    lines = [
        f"{result.rows} training rows of {len(result.silos)} silos, {len(result.columns)} columns.",
        f"No silo reported fewer than {min_count} rows: smaller numbers are within others, and "
        f"no difference discloses them. Numbers come in groups of at least {min_count} rows, each "
        "by its middle value to four digits.",
    ]
    if noise := result.survey.noise:
        lines.append(
            "Counts have noise: each silo's answer is differentially private with epsilon "
            f"{noise.epsilon:g}, in {noise.columns} columns with cells agreed in advance; their "
            "sum is the exact number of rows."
        )
    lines += [f"Absent: {', '.join(result.absent)}."] if result.absent else []
    return [*lines, *result.notes, *([f"There is no section [task]: {problem}"] if problem else [])]


def _html(result: SurveyResult, page_tables: list[Table], lines: list[str], task: str) -> str:
    pictures = _pictures(result)
    links = [(table.name, table.title) for table in page_tables]
    links += [("histograms", "Histograms")] if pictures else []
    return render(
        "survey.html.jinja",
        "pomona_federation.survey",
        title="Survey",
        first=page_tables[0].name,
        links=[*links, *([("task", "Section task")] if task else [])],
        opening=lines,
        tables=page_tables,
        pictures=pictures,
        task=task,
        width=WIDTH,
        height=HEIGHT,
        files=[TEXT, RESULT, *([TASK] if task else [])],
    )


def _pictures(result: SurveyResult) -> list[dict[str, object]]:
    """For each column of numbers: a histogram of all silos' rows with bins shared by all silos."""
    pictures = []
    for spec in result.columns:
        overall = pooled(result.numbers(spec.name).values())
        if spec.kind == "category" or not overall.counts:
            continue
        edges = nice_edges([overall], BINS)
        rows = histogram(overall, edges)
        step, top = WIDTH / len(rows), rows.max()
        bars = [
            (k * step, HEIGHT * (1 - n / top), step, HEIGHT * n / top)
            for k, n in enumerate(rows.tolist())
            if n
        ]
        extent = [f"{edges[0]:.4g}", f"{edges[-1]:.4g}"]
        pictures.append({"name": spec.name, "bars": bars, "ends": extent, "top": int(top)})
    return pictures
