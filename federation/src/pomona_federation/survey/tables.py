"""A survey's tables: labels and columns, of all silos and of each, and the distances between
silos.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan

import numpy as np

from pomona.core.table import PLACEHOLDER, Table
from pomona.partition.divergence import effective_classes, emd
from pomona_federation.survey.result import (
    Quantile,
    SurveyResult,
    distance,
    moments,
    name_distance,
    pooled,
    pooled_names,
    quantile,
)
from pomona_federation.survey.settings import Names, Numbers

TOP_WORDS = 50  # most rows that a page shows
MAX_LINES = 200  # most lines of a table of categories
ALL_SILOS = "all"


def tables(result: SurveyResult) -> list[Table]:
    """All tables that are not empty."""
    of_silos = silos, classes, targets
    of_columns = columns, means, missing, categories, distances, frequent_words
    return [table for build in (*of_silos, *of_columns) if (table := build(result)) and table.rows]


def silos(result: SurveyResult) -> Table:
    """The silos that answered, with their numbers of rows."""
    rows = [
        [
            name,
            _count(disclosure.figures.rows),
            _withheld(disclosure.figures.withheld) or "answered",
        ]
        for name, disclosure in result.silos.items()
    ]
    rows += [[name, PLACEHOLDER, f"absent: {reason}"] for name, reason in result.absent.items()]
    rows += [[ALL_SILOS, _count(result.rows), f"{len(result.silos)} silos"]]
    return Table("silos", "Silos", (), ["silo", "training rows", "answer"], rows, (0, 2))


def _withheld(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{column} not reported: {reason}" for column, reason in reasons.items())


def classes(result: SurveyResult) -> Table | None:
    """Rows of each class at each silo, and the label skew; None if no silo disclosed a class."""
    if result.data_schema.targets != "classes" or not result.classes:
        return None
    by_silo = {
        name: (disclosure.figures.classes or Names()).by_name
        for name, disclosure in result.silos.items()
    }
    cells = [by_class.get(name, 0) for by_class in by_silo.values() for name in result.classes]
    counts = np.array(cells, np.int64).reshape(len(by_silo), -1)
    effective, emds = effective_classes(counts), emd(counts)
    rows = [
        [
            name,
            *(_cell(by_class.get(label), result) for label in result.classes),
            *(PLACEHOLDER if isnan(v) else f"{v:.2f}" for v in (effective[i], emds[i])),
        ]
        for i, (name, by_class) in enumerate(by_silo.items())
    ]
    totals = counts.sum(axis=0, keepdims=True)
    sums = [_cell(n or None, result) for n in totals[0].tolist()]
    rows.append([ALL_SILOS, *sums, f"{effective_classes(totals)[0]:.2f}", PLACEHOLDER])
    notes = (
        (
            "Rows of a class that has fewer than the least count at a silo are counted with that "
            "silo's largest class."
        ),
        "Effective classes: as many equally frequent classes are as varied. Distance: sum of the "
        "differences of a silo's shares of classes from those of all rows, 0 to 2.",
    )
    head = ["silo", *result.classes, "effective classes", "distance"]
    return Table("classes", "Classes by silo", notes, head, rows)


def targets(result: SurveyResult) -> Table:
    """Targets that are numbers, flags or times."""
    rows = [
        [f"{target}, {name}" if target else name, *_figures([column], result)]
        for target, by_silo in result.targets().items()
        for name, column in {**by_silo, ALL_SILOS: pooled(by_silo.values())}.items()
    ]
    note = {
        "survival": "Times at which an event was seen; rows without one count as missing.",
        "multilabel": "Flags: the mean is the share of rows that have it.",
        "segmentation": "1 for a mask in which the class occurs, else 0.",
    }.get(result.data_schema.targets, "")
    return Table("targets", "Targets", [note] if note else (), ["target, silo", *HEAD], rows)


HEAD = ("known", "missing", "mean", "deviation", "5 %", "25 %", "median", "75 %", "95 %")


def columns(result: SurveyResult) -> Table:
    """Columns of numbers over all silos' rows."""
    numeric = [spec for spec in result.columns if spec.kind != "category"]
    rows = [
        [spec.name, *_figures([*result.numbers(spec.name).values()], result)] for spec in numeric
    ]
    notes = (
        (
            "In brackets: bounds of the exact quantile. Mean and deviation are those of the "
            "groups' middle values."
        ),
        "Dates are days since 2000-01-01.",
    )
    dated = any(spec.kind == "date" for spec in numeric)
    return Table("columns", "Columns of numbers", notes[: 1 + dated], ["column", *HEAD], rows)


def _figures(columns: Sequence[Numbers], result: SurveyResult) -> list[str]:
    overall = pooled(columns)
    stats = moments(overall)
    if not stats:
        return ["0", _count(overall.rest), *[PLACEHOLDER] * 7]
    quantiles = [
        quantile(columns, share, result.survey.least) for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    ]
    mean = [_number(stats.mean), _number(stats.deviation)]
    return [_count(stats.count), _count(overall.rest), *mean, *map(_quantile, quantiles)]


def _quantile(estimate: Quantile | None) -> str:
    if not estimate:
        return PLACEHOLDER
    low, high = (
        PLACEHOLDER if bound is None else _number(bound) for bound in (estimate.low, estimate.high)
    )
    return f"{_number(estimate.value)} ({low} to {high})"


def means(result: SurveyResult) -> Table:
    """Mean and deviation of each column of numbers at each silo."""

    def cell(column: str, silo: str) -> str:
        numbers = result.numbers(column).get(silo)
        stats = moments(numbers) if numbers else None
        return f"{_number(stats.mean)} ± {_number(stats.deviation)}" if stats else PLACEHOLDER

    numeric = [spec.name for spec in result.columns if spec.kind != "category"]
    return _by_silo("means", "Mean and deviation by silo", numeric, cell, result)


def missing(result: SurveyResult) -> Table:
    """Rows without a disclosable value in a column."""

    def cell(column: str, silo: str) -> str:
        disclosed = (result.numbers(column) | result.names(column)).get(silo)
        return PLACEHOLDER if disclosed is None else f"{disclosed.rest / disclosed.rows:.0%}"

    notes = (
        f"Share of rows without a value, or with a category in fewer than {result.survey.least} "
        "rows of the silo. "
        f"Fewer than {result.survey.least} such rows are counted with the others, and 0% is shown.",
    )
    return _by_silo(
        "missing",
        "Missing or rare, by silo",
        [spec.name for spec in result.columns],
        cell,
        result,
        notes,
    )


def categories(result: SurveyResult) -> Table:
    """Rows of each category at each silo and at all of them."""
    categorical = {
        spec.name: result.names(spec.name) for spec in result.columns if spec.kind == "category"
    }
    lines = [
        (column, name, n)
        for column, by_silo in categorical.items()
        for name, n in pooled_names(by_silo.values()).most_common()
    ]

    def cell(column: str, name: str, silo: str) -> str:
        names = categorical[column].get(silo)
        return _cell(names.by_name.get(name), result) if names else PLACEHOLDER

    rows = [
        [f"{column} = {name}", *(cell(column, name, silo) for silo in result.silos), _count(n)]
        for column, name, n in lines[:MAX_LINES]
    ]
    notes = [f"The first {MAX_LINES} of {len(lines)}."] if len(lines) > MAX_LINES else ()
    return Table("categories", "Categories", notes, ["column", *result.silos, ALL_SILOS], rows)


def distances(result: SurveyResult) -> Table:
    """Feature shift: distance of each silo's values of a column from all silos' values."""

    def cell(column: str, silo: str) -> str:
        numbers, names = result.numbers(column), result.names(column)
        if silo in numbers:
            shift = distance(numbers[silo], pooled(numbers.values()))
        else:
            shift = (
                name_distance(names[silo], pooled_names(names.values())) if silo in names else None
            )
        return PLACEHOLDER if shift is None else f"{shift:.2f}"

    notes = (
        "0: as in all silos together; 1: nothing in common. Numbers: the largest difference of the "
        "shares of rows below any value (Kolmogorov and Smirnov). Categories: half the sum of the "
        "differences of their shares.",
    )
    return _by_silo(
        "shift",
        "Shift of columns between silos",
        [f.name for f in result.columns],
        cell,
        result,
        notes,
    )


def frequent_words(result: SurveyResult) -> Table:
    """The words that occur in most texts."""
    counts = result.word_counts()
    top = sorted(counts, key=lambda token: (-counts[token], token))[:TOP_WORDS]
    rows = [[token, _count(counts[token]), f"{counts[token] / result.rows:.1%}"] for token in top]
    notes = [f"{TOP_WORDS} of {len(counts)} reported words, those in most texts."]
    return Table("words", "Words", notes, ["word", "texts", "share"], rows)


def _by_silo(
    name: str,
    title: str,
    columns: Iterable[str],
    cell: Callable[[str, str], str],
    result: SurveyResult,
    notes: Sequence[str] = (),
) -> Table:
    rows = [[column, *(cell(column, silo) for silo in result.silos)] for column in columns]
    return Table(name, title, notes, ["column", *result.silos], rows)


def _cell(count: int | None, result: SurveyResult) -> str:
    return f"< {result.survey.least}" if count is None else _count(count)


def _count(n: int) -> str:
    return f"{n:,}".replace(",", " ") if n >= 10**4 else str(n)


def _number(value: float) -> str:
    return f"{value:.4g}"
