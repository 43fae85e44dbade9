"""Reference numbers: what a paper, or a reader, has measured of a suite's scenarios and methods.

    title = "table 1 of the APPLE paper"
    source = "Luo and Wu, IJCAI 2022"
    average = "best_test"             # how its numbers are counted, a name in AVERAGES
    label = "paper"                   # heading of its column, next to "ours"

    [settings]                        # stated for all scenarios; where the runs differ, it is named
    rounds = 160

    [scenario."MNIST, pathological"]  # the scenario's title, or its name if it has none
    settings.data.name = "mnist"
    numbers.FedAvg = 95.71            # the method's row, or its name; percent where the metric is
    numbers.APPLE = { value = 99.77, std = 0.1, note = "read from a plot" }

A bench keeps the numbers that its suite names, so that its page can be written without the suite.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pomona.core.bounds import Line, Measured
from pomona.core.settings import Settings
from pomona.core.toml import leaves, named_file, read_file, validated
from pomona.metrics.metric import METRICS, is_own

MAX_ENTRIES = 10**4  # scenarios, and methods of each

Moment = Literal["best_test", "best_validation", "last"]
ROUNDS: dict[Moment, str] = {
    "best_test": "best round on test",
    "best_validation": "round best on validation",
    "last": "last round",
}


class Average(NamedTuple):
    """Definition of a reported number: its round, and what it is the mean of."""

    moment: Moment
    unit: Literal["clients", "samples"]

    def __str__(self) -> str:
        if self.unit == "clients":
            return f"mean over clients in the {ROUNDS[self.moment]}"
        return f"all test samples together, each counting once, in the {ROUNDS[self.moment]}"


AverageName = Literal[
    "best_test",
    "best_validation",
    "last",
    "best_test_pooled",
    "best_validation_pooled",
    "last_pooled",
]
AVERAGES: dict[AverageName, Average] = {
    "best_test": Average("best_test", "clients"),
    "best_validation": Average("best_validation", "clients"),
    "last": Average("last", "clients"),
    "best_test_pooled": Average("best_test", "samples"),
    "best_validation_pooled": Average("best_validation", "samples"),
    "last_pooled": Average("last", "samples"),
}
"""All averages, by their names in files and in ``comparison.csv``."""


class Number(Settings):
    """A number as printed, written alone where it has neither a deviation nor a note.

    Attributes:
        value: The number; a word where none is printed, such as infinite.
        std: Its standard deviation.
        note: A peculiarity, shown below the table.
    """

    value: Measured | Line
    std: Measured | None = None
    note: Line = ""

    @model_validator(mode="before")
    @classmethod
    def _expand_number(cls, data: Any) -> Any:
        return {"value": data} if isinstance(data, int | float | str) else data

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return self.value
        return f"{self.value:g}" if self.std is None else f"{self.value:g} ± {self.std:g}"


Stated = Annotated[dict[Line, Any], BeforeValidator(leaves), Field(max_length=MAX_ENTRIES)]
Numbers = Annotated[dict[Line, Number], Field(max_length=MAX_ENTRIES)]


class ReferenceScenario(Settings):
    """Reference numbers of one scenario, by method.

    Attributes:
        settings: Settings stated for it, over the common ones.
        numbers: The metric on test data.
        epsilon: Privacy spent.
        minutes: Minutes of the whole training.
        minutes_a_round: Minutes of a round.
        chosen: Settings found by a search.
    """

    settings: Stated = Field({})
    numbers: Numbers = Field({})
    epsilon: Numbers = Field({})
    minutes: Numbers = Field({})
    minutes_a_round: Numbers = Field({})
    chosen: dict[Line, Stated] = Field({}, max_length=MAX_ENTRIES)


class Reference(Settings):
    """A file of reference numbers.

    Attributes:
        title: What the numbers are, such as: table 1 of the APPLE paper.
        source: Where they are published.
        label: Heading of its column.
        average: How the numbers are counted, and ours next to them.
        metric: The metric that they are of.
        settings: Settings stated for all scenarios.
        scenario: Scenarios, by title, or by name if a scenario has no title.
    """

    title: Line = Field(min_length=1)
    source: Line = ""
    label: Line = Field("reference", min_length=1)
    average: AverageName
    metric: str = "accuracy"
    settings: Stated = Field({})
    scenario: dict[Line, ReferenceScenario] = Field({}, max_length=MAX_ENTRIES)

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, metric: str) -> str:
        if metric not in METRICS and not is_own(metric):
            raise ValueError(f"known: {', '.join(METRICS)}")
        return metric

    @model_validator(mode="after")
    def _compared(self) -> Self:
        """Reference numbers must be numbers."""
        for name, scenario in self.scenario.items():
            for method, number in scenario.numbers.items():
                if isinstance(number.value, str):
                    raise ValueError(f"scenario {name}, {method}: {number.value!r} is not a number")
        return self

    def for_scenario(self, scenario: str) -> ReferenceScenario:
        """Return the reference numbers of a scenario."""
        return self.scenario.get(scenario, ReferenceScenario())

    def stated(self, scenario: str) -> dict[str, Any]:
        """Return the settings stated for a scenario, by dotted key."""
        return {**self.settings, **self.for_scenario(scenario).settings}


def read_reference(path: Path) -> Reference:
    """Read a file of reference numbers. Raises ConfigError with the file and every bad key."""
    tree = read_file(path)
    with named_file(path):
        return validated(Reference, tree)
