"""What a linear model's coefficients compare, in the units of its table: a change of a column, in
an outcome.

The outputs are W x + b of standardised features x. A coefficient is a contrast c . theta of the
parameters theta: between two outputs (a class and the first one), along one unit of a column, or
between a category and its reference. So it does not depend on what the parameters have in common,
such as the sum of softmax's rows, or of one-hot features and intercept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pomona.data.preprocessing import Preprocessing, TableColumn
from pomona.models.mlp import PROPORTIONAL_HAZARDS
from pomona.models.parameter_space import ParameterSlice
from pomona.record.coefficients import Change, Measure
from pomona.record.model_metadata import ModelMetadata
from pomona.tasks.survival import edge_name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Direction:
    """What a coefficient compares in the inputs: ``features`` (F,), a change of the features."""

    column: str
    change: Change
    step: str
    reference: str
    features: Floats


@dataclass(frozen=True)
class Outcome:
    """What a coefficient compares in the outputs: ``weights`` (R,) of the rows of W."""

    name: str
    weights: Floats


def directions(description: ModelMetadata) -> list[Direction]:
    """Return the changes of a table's features by one unit of each number (a day, of dates), from
    the reference to each other category, and from the filled-in value to a gap.
    """
    table, n = description.preprocessing, description.input_shape[0]
    scale = np.broadcast_to(description.scale, n) * np.array((table and table.scale) or (1.0,))
    units = np.diag(1 / scale)
    if table is None:
        names = description.columns or tuple(f"column {k}" for k in range(n))
        return [Direction(n, "number", "1", "", unit) for n, unit in zip(names, units, strict=True)]
    return list(_of_columns(table, units))


def _of_columns(table: Preprocessing, units: Floats) -> Iterator[Direction]:
    start = 0
    for column in table.columns:
        features = units[start : start + len(column.features)]
        start += len(features)
        if column.kind == "category":
            yield from _of_categories(column, features)
        else:
            step = "1 day" if column.kind == "date" else "1"
            yield Direction(column.name, column.kind, step, "", features[0])
        if column.flagged:
            yield Direction(column.name, "gap", "a gap", _filled(column), features[-1])


def _filled(column: TableColumn) -> str:
    """Return the value that stands in gaps, as text."""
    if column.kind == "date" and isinstance(column.fill, float):
        return str(np.datetime64("2000-01-01") + round(column.fill))
    return f"{column.fill:.4g}" if isinstance(column.fill, float) else str(column.fill)


def _of_categories(column: TableColumn, features: Floats) -> Iterator[Direction]:
    """Yield the change to each category from the filled-in one (the most frequent), or the
    first.
    """
    if len(column.values) == 1:
        yield Direction(column.name, "category", column.values[0], "all others", features[0])
        return
    base = column.values.index(column.fill) if column.fill in column.values else 0
    for k, value in enumerate(column.values):
        if k != base:
            change = features[k] - features[base]
            yield Direction(column.name, "category", value, column.values[base], change)


def outcomes(description: ModelMetadata) -> tuple[Measure, list[Outcome]]:
    """Return what a model's coefficients measure, and of which outcomes."""
    names, units = description.names, np.eye(description.outputs)
    if description.network.name == PROPORTIONAL_HAZARDS:
        return "hazard ratio", [Outcome("event", np.ones(1))]
    if description.targets == "classes":
        against = f" against {names[0]}"
        compared = [
            Outcome(name + against, row - units[0])
            for name, row in zip(names[1:], units[1:], strict=True)
        ]
        return "odds ratio" if len(names) == 2 else "relative risk ratio", compared
    if description.targets == "survival":
        names = tuple(f"event in the interval to {edge_name(edge)}" for edge in description.edges)
    if description.targets == "regression":
        scale = np.broadcast_to(description.target_scale, description.outputs)
        return "difference", [Outcome(*pair) for pair in zip(names, units * scale, strict=True)]
    return "odds ratio", [Outcome(*pair) for pair in zip(names, units, strict=True)]


@dataclass(frozen=True)
class Contrasts:
    """The coefficients of a model.

    Attributes:
        measure: what they measure.
        outcomes: that they compare.
        names: of each, what it compares, in words.
        rows: (n, d) each one's contrast of the parameters.
    """

    measure: Measure
    outcomes: list[Outcome]
    names: list[dict[str, str]]
    rows: Floats

    @classmethod
    def of(cls, description: ModelMetadata, weight: ParameterSlice, parameters: int) -> "Contrasts":
        """Return those of a model with W (R, F) among its parameters (d,)."""
        measure, compared = outcomes(description)
        names, changes = [], []
        for direction in directions(description):
            words = {k: v for k, v in vars(direction).items() if k != "features"}
            for outcome in compared:
                names.append({**words, "outcome": outcome.name})
                changes.append(np.outer(outcome.weights, direction.features).ravel())
        rows = np.zeros((len(names), parameters))
        if names:  # a single class has nothing to be compared with
            rows[:, weight.start : weight.stop] = changes
        return cls(measure, compared, names, rows)
