"""A survey's tables: labels and columns, of all silos and of each, and the distances between
silos.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan

import numpy as np

from pomona.core.table import NOTHING, Table
from pomona.partition.divergence import effective_classes, emd
from pomona_federation.survey.replies import Names, Numbers
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

WORDS = 50  # most rows that a page shows
MOST = 200  # most lines of a table of categories
ALL = "all"


def tables(result: SurveyResult) -> list[Table]:
    """All tables that are not empty."""
    made = (silos, classes, targets, columns, means, missing, categories, distances, words)
    return [table for make in made if (table := make(result))]


def silos(result: SurveyResult) -> Table:
    """The silos that answered, with their numbers of rows."""
    told = result.silos.items()
    rows = [
        [name, _count(own.figures.rows), _withheld(own.figures.withheld) or "answered"]
        for name, own in told
    ]
    rows += [[name, NOTHING, f"absent: {why}"] for name, why in result.absent.items()]
    rows += [[ALL, _count(result.rows), f"{len(result.silos)} silos"]]
    return Table("silos", "Silos", (), ["silo", "training rows", "answer"], rows, (0, 2))


def _withheld(why: Mapping[str, str]) -> str:
    return "; ".join(f"{column} not reported: {reason}" for column, reason in why.items())


def classes(result: SurveyResult) -> Table | None:
    """Rows of each class at each silo, and the label skew; None if no silo disclosed a class."""
    if result.one.targets != "classes" or not result.classes:
        return None
    told = {name: (own.figures.classes or Names()).by_name for name, own in result.silos.items()}
    counts = np.array(
        [[own.get(name, 0) for name in result.classes] for own in told.values()], np.int64
    )
    spread, apart = effective_classes(counts), emd(counts)
    rows = [
        [
            name,
            *(_cell(own.get(label), result) for label in result.classes),
            *_skew(spread[i], apart[i]),
        ]
        for i, (name, own) in enumerate(told.items())
    ]
    sums = [_count(n) if n else _few(result) for n in counts.sum(axis=0).tolist()]
    rows.append(
        [ALL, *sums, f"{effective_classes(counts.sum(axis=0, keepdims=True))[0]:.2f}", NOTHING]
    )
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


def _skew(spread: float, apart: float) -> list[str]:
    """Notes on the label skew; none for silos that disclosed no class."""
    return [NOTHING if isnan(value) else f"{value:.2f}" for value in (spread, apart)]


def targets(result: SurveyResult) -> Table | None:
    """Targets that are numbers, flags or times."""
    rows = [
        [f"{target}, {name}" if target else name, *_figures([own], result)]
        for target, by_silo in result.targets().items()
        for name, own in {**by_silo, ALL: pooled(by_silo.values())}.items()
    ]
    note = {
        "survival": "Times at which an event was seen; rows without one count as missing.",
        "multilabel": "Flags: the mean is the share of rows that have it.",
        "segmentation": "1 for a mask in which the class occurs, else 0.",
    }.get(result.one.targets, "")
    return (
        Table("targets", "Targets", [note] if note else (), ["target, silo", *HEAD], rows)
        if rows
        else None
    )


HEAD = ("known", "missing", "mean", "deviation", "5 %", "25 %", "median", "75 %", "95 %")


def columns(result: SurveyResult) -> Table | None:
    """Columns of numbers over all silos' rows."""
    asked = [form for form in result.forms if form.kind != "category"]
    rows = [[form.name, *_figures([*result.numbers(form.name).values()], result)] for form in asked]
    notes = (
        (
            "In brackets: bounds of the exact quantile. Mean and deviation are those of the "
            "groups' middle values."
        ),
        "Dates are days since 2000-01-01.",
    )
    dated = any(form.kind == "date" for form in asked)
    return (
        Table("columns", "Columns of numbers", notes[: 1 + dated], ["column", *HEAD], rows)
        if rows
        else None
    )


def _figures(told: Sequence[Numbers], result: SurveyResult) -> list[str]:
    all_ = pooled(told)
    found = moments(all_)
    if not found:
        return ["0", _count(all_.rest), *[NOTHING] * 7]
    shares = [quantile(told, share, result.survey.least) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
    mean = [_number(found.mean), _number(found.deviation)]
    return [_count(found.count), _count(all_.rest), *mean, *map(_quantile, shares)]


def _quantile(found: Quantile | None) -> str:
    if not found:
        return NOTHING
    low, high = (NOTHING if bound is None else _number(bound) for bound in (found.low, found.high))
    return f"{_number(found.value)} ({low} to {high})"


def means(result: SurveyResult) -> Table | None:
    """Mean and deviation of each column of numbers at each silo."""

    def cell(column: str, silo: str) -> str:
        own = result.numbers(column).get(silo)
        found = moments(own) if own else None
        return f"{_number(found.mean)} ± {_number(found.deviation)}" if found else NOTHING

    asked = [form.name for form in result.forms if form.kind != "category"]
    return _by_silo("means", "Mean and deviation by silo", asked, cell, result)


def missing(result: SurveyResult) -> Table | None:
    """Rows without a disclosable value in a column."""

    def cell(column: str, silo: str) -> str:
        own = (result.numbers(column) | result.names(column)).get(silo)
        return NOTHING if own is None else f"{own.rest / own.rows:.0%}"

    notes = (
        f"Share of rows without a value, or with a category in fewer than {result.survey.least} "
        "rows of the silo. "
        f"Fewer than {result.survey.least} such rows are counted with the others, and 0% is shown.",
    )
    return _by_silo(
        "missing",
        "Missing or rare, by silo",
        [form.name for form in result.forms],
        cell,
        result,
        notes,
    )


def categories(result: SurveyResult) -> Table | None:
    """Rows of each category at each silo and at all of them."""
    asked = {form.name: result.names(form.name) for form in result.forms if form.kind == "category"}
    lines = [
        (column, name, n)
        for column, own in asked.items()
        for name, n in pooled_names(own.values()).most_common()
    ]
    rows = [
        [
            f"{column} = {name}",
            *(
                _cell(own.by_name.get(name), result) if (own := asked[column].get(s)) else NOTHING
                for s in result.silos
            ),
            _count(n),
        ]
        for column, name, n in lines[:MOST]
    ]
    notes = [f"The first {MOST} of {len(lines)}."] if len(lines) > MOST else ()
    return (
        Table("categories", "Categories", notes, ["column", *result.silos, ALL], rows)
        if rows
        else None
    )


def distances(result: SurveyResult) -> Table | None:
    """Feature shift: distance of each silo's values of a column from all silos' values."""

    def cell(column: str, silo: str) -> str:
        numbers, names = result.numbers(column), result.names(column)
        if silo in numbers:
            apart = distance(numbers[silo], pooled(numbers.values()))
        else:
            apart = (
                name_distance(names[silo], pooled_names(names.values())) if silo in names else None
            )
        return NOTHING if apart is None else f"{apart:.2f}"

    notes = (
        "0: as in all silos together; 1: nothing in common. Numbers: the largest difference of the "
        "shares of rows below any value (Kolmogorov and Smirnov). Categories: half the sum of the "
        "differences of their shares.",
    )
    return _by_silo(
        "shift",
        "Shift of columns between silos",
        [f.name for f in result.forms],
        cell,
        result,
        notes,
    )


def words(result: SurveyResult) -> Table | None:
    """The words that occur in most texts."""
    told = result.words()
    first = sorted(told, key=lambda word: (-told[word], word))[:WORDS]
    rows = [[word, _count(told[word]), f"{told[word] / result.rows:.1%}"] for word in first]
    notes = [f"{WORDS} of {len(told)} reported words, those in most texts."]
    return Table("words", "Words", notes, ["word", "texts", "share"], rows) if rows else None


def _by_silo(
    name: str,
    title: str,
    asked: Iterable[str],
    cell: Callable[[str, str], str],
    result: SurveyResult,
    notes: Sequence[str] = (),
) -> Table | None:
    rows = [[column, *(cell(column, silo) for silo in result.silos)] for column in asked]
    return Table(name, title, notes, ["column", *result.silos], rows) if rows else None


def _cell(count: int | None, result: SurveyResult) -> str:
    return _few(result) if count is None else _count(count)


def _few(result: SurveyResult) -> str:
    return f"< {result.survey.least}"


def _count(n: int) -> str:
    return f"{n:,}".replace(",", " ") if n >= 10**4 else str(n)


def _number(value: float) -> str:
    return f"{value:.4g}"
