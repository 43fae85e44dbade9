"""Types with bounds for a bench's results as read from ``results.json``.

Other keys are kept unchanged and never used in computations.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from pomona.core.bounds import Count, Line, Number, Seconds, Within
from pomona.core.notes import LONGEST, Topic
from pomona.experiments.job import State
from pomona.experiments.reference import Reference
from pomona.experiments.suite import Name
from pomona.metrics.metric import METRICS, is_own
from pomona.record.events import MAX_NAMES, Facts, Figure

Values = Annotated[list[Figure], Field(max_length=MAX_NAMES)]
Texts = dict[Line, Line]
Tree = dict[Line, Any]


def _metric(name: str) -> str:
    if not is_own(name) and name not in METRICS:
        raise ValueError("no metric has this name")
    return name


MetricName = Annotated[Line, AfterValidator(_metric)]


class _Summary(Facts):
    mean: Figure
    accuracy: Figure
    std: Figure
    worst: Figure
    percentile_10: Figure
    loss: Figure


def _require_equal_lengths(unit: str, *columns: Sequence[Any]) -> None:
    if len(set(map(len, columns))) > 1:
        raise ValueError(f"there must be one value for each {unit}")


class _Moment(Facts):
    round: Number
    value: Values
    accuracy: Values
    loss: Values
    samples: list[Count]
    summary: _Summary

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        _require_equal_lengths("client", self.value, self.accuracy, self.loss, self.samples)
        return self


class _Moments(Facts):
    last: _Moment
    best_validation: _Moment | None


class _Curve(Facts):
    round: list[Number]
    test_accuracy: Values
    test_value: Values
    test_accuracy_pooled: Values
    validation_value: Values

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        accuracies = self.test_accuracy, self.test_accuracy_pooled
        values = self.test_value, self.validation_value
        _require_equal_lengths("round", self.round, *accuracies, *values)
        return self


class _Chosen(Facts):
    round: Number


class _Epsilon(Facts):
    epsilon: Figure
    void: Line | None = None


class _Note(Facts):
    text: Annotated[str, Field(max_length=LONGEST)]
    topic: Topic


class _Figures(Facts):
    headline: Line
    metric: MetricName
    parameters: Count
    clients: Annotated[list[Line], Field(max_length=MAX_NAMES)]
    rounds: Number
    bytes_down: Count
    bytes_up: Count
    models: dict[Line, _Moments]
    curve: _Curve
    validation: _Chosen | None
    privacy: _Epsilon | None = None
    notes: list[_Note] = Field(default_factory=list)

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        moments = [m for model in self.models.values() for m in (model.last, model.best_validation)]
        _require_equal_lengths("client", self.clients, *(m.value for m in moments if m))
        return self


class _Run(Facts):
    folder: Within
    state: State
    reason: Line = ""


class _Cell(_Run):
    seed: Count
    figures: _Figures | None


class _Trial(_Run):
    point: Tree


class _Result(Facts):
    scenario: Name
    method: Line
    state: State
    search: list[_Trial]
    chosen: Tree | None
    settings: Tree | None
    cells: list[_Cell]


class _Tuning(Facts):
    points: Count
    seed: Count
    rule: Line


class _Presentation(Facts):
    title: Line = ""


class _Row(Facts):
    row: Line
    presentation: _Presentation = _Presentation()


class _Scenario(Facts):
    title: Line


class SavedResults(Facts):
    """``results.json``."""

    title: Line
    note: Line
    own: list[Line]
    reference: Reference | None
    size: Line
    seeds: list[Count]
    tuning: _Tuning
    scenarios: dict[Line, _Scenario]
    methods: dict[Line, _Row]
    versions: list[Texts]
    results: list[_Result]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for result in self.results:
            if result.scenario not in self.scenarios or result.method not in self.methods:
                raise ValueError(
                    f"a result of {result.method} in {result.scenario}, which the bench does not "
                    "have"
                )
        return self


class Timing(Facts):
    """``timing.json``: elapsed seconds after each round, by a cell's folder."""

    __pydantic_extra__: dict[str, list[Seconds]]
