"""A survey's page, also as Markdown, and the next study's section task, written beside its
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
from pomona_federation.survey.replies import ColumnForm, Numbers
from pomona_federation.survey.result import (
    SurveyResult,
    histogram,
    moments,
    nice_edges,
    pooled,
    pooled_names,
    quantile,
)
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
    one = result.one
    task: dict[str, Any] = {
        "kind": one.kind,
        "dtype": one.dtype,
        "targets": one.targets,
        **_targets(result),
    }
    if one.kind == "table":
        try:
            return task | _table(result)
        except ValidationError as fault:
            raise DataError(f"the reported columns do not fit into one ({first(fault)})") from None
    if one.kind == "text":
        told = result.words()
        words = sorted(told, key=lambda word: (-told[word], word))[: result.survey.words]
        return task | {
            "input_shape": list(one.shape),
            "words": words,
            "vocabulary": len(words) + FIRST_WORD,
        }
    shift, scale = zip(*(_channel(result, k) for k in range(one.shape[-1])), strict=True)
    return task | {"input_shape": list(one.shape), "shift": list(shift), "scale": list(scale)}


def _targets(result: SurveyResult) -> Tree:
    """The classes, or else the meaning of a network's outputs."""
    kind, told = result.one.targets, result.targets()
    if kind in {"classes", "segmentation"}:
        if len(result.classes) < 2:
            raise DataError(
                "fewer than two classes were reported, so that there is nothing to learn; ask "
                "more silos"
            )
        return {"classes": list(result.classes), "outputs": len(result.classes)}
    if kind == "survival":
        times = [column for by_silo in told.values() for column in by_silo.values()]
        shares = np.arange(1, result.survey.intervals + 1) / result.survey.intervals
        edges = sorted({end.value for share in shares if (end := quantile(times, float(share), 1))})
        if not edges:
            raise DataError(
                "no silo reported enough events, so that time has no intervals; ask more silos"
            )
        return {"time_edges": edges, "outputs": len(edges)}
    outputs: dict[str, Any] = {"outputs": len(told)}
    if kind == "regression":
        shift, scale = zip(
            *(_moments(pooled(by_silo.values())) for by_silo in told.values()), strict=True
        )
        return outputs | {"target_shift": list(shift), "target_scale": list(scale)}
    return outputs


def _table(result: SurveyResult) -> Tree:
    columns: list[TableColumn] = []
    features: list[Moment] = []
    for form in result.forms:
        of = _category if form.kind == "category" else _number
        column, its = of(result, form)
        columns.append(column)
        features += its
    if not features:
        raise DataError("no reported column could be a feature; ask more silos")
    layouts = {told.columns.layout for told in result.silos.values()}
    layout = layouts.pop() if len(layouts) == 1 else ()
    by = Preprocessing(columns=tuple(columns), layout=layout)
    shift, scale = zip(*features, strict=True)
    agreed = by.model_dump(mode="json", exclude_none=True)
    return {
        "input_shape": [by.width],
        "shift": list(shift),
        "scale": list(scale),
        "preprocessing": agreed,
    }


def _number(result: SurveyResult, form: ColumnForm) -> tuple[TableColumn, list[Moment]]:
    """A column of numbers or dates: gaps become its median, with a feature that flags them if some
    were disclosed.
    """
    told = [*result.numbers(form.name).values()]
    all_, middle = pooled(told), quantile(told, 0.5, 1)
    fill = middle.value if middle else 0.0
    column = TableColumn(
        name=form.name, kind=form.kind, missing=form.missing, fill=fill, flagged=all_.rest > 0
    )
    # a sum, outside any silo's bounds
    gaps = Numbers.model_construct(values=(fill,), counts=(all_.rest,), rest=0)
    filled = pooled([all_, gaps]) if all_.rest else all_
    return column, [_moments(filled) if middle else UNKNOWN, *_flag(all_.rest, all_.rows)]


def _category(result: SurveyResult, form: ColumnForm) -> tuple[TableColumn, list[Moment]]:
    """A column of categories: one feature per category that is frequent enough in all silos'
    rows.
    """
    told = result.names(form.name).values()
    counts, rest = pooled_names(told), sum(column.rest for column in told)
    rows = counts.total() + rest
    values = in_order(
        name for name, n in counts.items() if n >= result.survey.category_share * rows
    )
    usual = max(values, key=lambda name: counts[name], default="")
    column = TableColumn(
        name=form.name,
        kind="category",
        missing=form.missing,
        fill=usual,
        flagged=rest > 0,
        values=values,
    )
    each = [_share(counts[name] + rest * (name == usual), rows) for name in values]
    return column, [*each, *_flag(rest, rows)]


def _flag(rest: int, rows: int) -> list[Moment]:
    return [_share(rest, rows)] if rest else []


def _share(n: int, rows: int) -> Moment:
    share = n / rows
    return share, sqrt(share * (1 - share)) or 1.0


def _moments(column: Numbers) -> Moment:
    """Mean and standard deviation; a deviation within rounding becomes 1, so that such a feature
    becomes 0.
    """
    found = moments(column)
    if not found:
        return UNKNOWN
    varies = found.deviation > np.finfo(np.float32).eps * abs(found.mean)
    return found.mean, found.deviation if varies else 1.0


def _channel(result: SurveyResult, k: int) -> Moment:
    """Mean and standard deviation of a channel's pixels, from the means over images of pixels and
    of their squares.
    """
    mean, square = (
        _moments(pooled(result.numbers(channel(k, what)).values()))[0]
        for what in ("mean", "square")
    )
    return mean, sqrt(max(square - mean**2, 0.0)) or 1.0


PAGE, TEXT, RESULT, TASK = "survey.html", "survey.md", "survey.json", "task.toml"
BINS = 20
WIDTH, HEIGHT = 200.0, 60.0  # size of a small histogram


def write(result: SurveyResult, out: Path) -> Path:
    """Write ``survey.html``, ``.md``, ``.json`` and, if enough was disclosed, ``task.toml``; return
    the page's path.

    Raises StorageError if ``out`` cannot be written.
    """
    try:
        task, lacking = tomli_w.dumps({"task": task_of(result)}), ""
    except DataError as fault:
        task, lacking = "", str(fault)
    texts = {RESULT: result.model_dump_json(indent=1) + "\n", **({TASK: task} if task else {})}
    made = tables(result)
    told = opening(result, lacking)
    escaped = (line.translate(MARKDOWN) for line in told)  # notes have names of columns
    parts = ["# Survey", *escaped, *(markdown(table).rstrip() for table in made)]
    parts += ["## Section task of the next study", f"```toml\n{task}```"] if task else []
    return write_page(
        out, texts | {TEXT: "\n\n".join(parts) + "\n", PAGE: _html(result, made, told, task)}
    )


def opening(result: SurveyResult, lacking: str = "") -> list[str]:
    """The page's subject and its caveats."""
    least = result.survey.least
    said = [
        f"{result.rows} training rows of {len(result.silos)} silos, {len(result.forms)} columns.",
        f"No silo reported fewer than {least} rows: smaller numbers are within others, and cannot "
        f"be had by a difference. Numbers come in groups of at least {least} rows, each by its "
        "middle value to four digits.",
    ]
    if noise := result.survey.noise:
        said.append(
            "Counts have noise: each silo's answer is differentially private with epsilon "
            f"{noise.epsilon:g}, in {noise.columns} columns whose cells were agreed before; their "
            "sum is the exact number of rows."
        )
    said += [f"Absent: {', '.join(result.absent)}."] if result.absent else []
    return [*said, *result.notes, *([f"There is no section task: {lacking}"] if lacking else [])]


def _html(result: SurveyResult, made: list[Table], told: list[str], task: str) -> str:
    pictures = _pictures(result)
    links = [(table.name, table.title) for table in made]
    links += [("histograms", "Histograms")] if pictures else []
    return render(
        "survey.html.jinja",
        "pomona_federation.survey",
        title="Survey",
        first=made[0].name,
        links=[*links, *([("task", "Section task")] if task else [])],
        opening=told,
        tables=made,
        pictures=pictures,
        task=task,
        width=WIDTH,
        height=HEIGHT,
        files=[TEXT, RESULT, *([TASK] if task else [])],
    )


def _pictures(result: SurveyResult) -> list[dict[str, object]]:
    """For each column of numbers: a histogram of all silos' rows with bins shared by all silos."""
    drawn = []
    for form in result.forms:
        all_ = pooled(result.numbers(form.name).values())
        if form.kind == "category" or not all_.counts:
            continue
        edges = nice_edges([all_], BINS)
        rows = histogram(all_, edges)
        step, top = WIDTH / len(rows), rows.max()
        bars = [
            (k * step, HEIGHT * (1 - n / top), step, HEIGHT * n / top)
            for k, n in enumerate(rows.tolist())
            if n
        ]
        ends = [f"{edges[0]:.4g}", f"{edges[-1]:.4g}"]
        drawn.append({"name": form.name, "bars": bars, "ends": ends, "top": int(top)})
    return drawn
