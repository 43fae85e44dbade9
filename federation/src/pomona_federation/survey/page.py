"""A survey's page, also as Markdown, and the next study's section task, written beside its result."""

from pathlib import Path

import tomli_w

from pomona.core.errors import DataError
from pomona.core.table import Table, markdown
from pomona.results.web.page_writer import render, write_page
from pomona_federation.survey.figures import histogram, nice_edges, pooled
from pomona_federation.survey.next_task import task_of
from pomona_federation.survey.result import SurveyResult
from pomona_federation.survey.tables import tables

PAGE, TEXT, RESULT, TASK = "survey.html", "survey.md", "survey.json", "task.toml"
BINS = 20
WIDTH, HEIGHT = 200.0, 60.0  # size of a small histogram


def write(result: SurveyResult, out: Path) -> Path:
    """Write ``survey.html``, ``.md``, ``.json`` and, if enough was disclosed, ``task.toml``; return the page's path.

    Raises StorageError if ``out`` cannot be written.
    """
    try:
        task, lacking = tomli_w.dumps({"task": task_of(result)}), ""
    except DataError as fault:
        task, lacking = "", str(fault)
    texts = {RESULT: result.model_dump_json(indent=1) + "\n", **({TASK: task} if task else {})}
    made = tables(result)
    told = opening(result, lacking)
    parts = ["# Survey", *told, *(markdown(table).rstrip() for table in made)]
    parts += ["## Section task of the next study", f"```toml\n{task}```"] if task else []
    return write_page(out, texts | {TEXT: "\n\n".join(parts) + "\n", PAGE: _html(result, made, told, task)})


def opening(result: SurveyResult, lacking: str = "") -> list[str]:
    """The page's subject and its caveats."""
    least = result.survey.least
    said = [
        f"{result.rows} training rows of {len(result.silos)} silos, {len(result.forms)} columns.",
        f"No silo reported fewer than {least} rows: smaller numbers are within others, and cannot be had by a "
        f"difference. Numbers come in groups of at least {least} rows, each by its middle value to four digits.",
    ]
    if noise := result.survey.noise:
        said.append(
            f"Counts have noise: each silo's answer is differentially private with epsilon {noise.epsilon:g}, in "
            f"{noise.columns} columns whose cells were agreed before; their sum is the exact number of rows."
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
        bars = [(k * step, HEIGHT * (1 - n / top), step, HEIGHT * n / top) for k, n in enumerate(rows.tolist()) if n]
        ends = [f"{edges[0]:.4g}", f"{edges[-1]:.4g}"]
        drawn.append({"name": form.name, "bars": bars, "ends": ends, "top": int(top)})
    return drawn
