"""Types with bounds for the events of a record, by kind.

Fields that readers compute with are defined here. Other keys are kept unchanged and never used in
computations.
"""

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import from_json

from pomona.core.bounds import (
    HUGE,
    MAX_CLIENTS,
    ClientId,
    Count,
    Label,
    Line,
    Measured,
    Number,
    Seconds,
    Sha256,
    Targets,
    first,
)
from pomona.core.notes import Note
from pomona.data.preprocessing import Preprocessing
from pomona.record.presentation import Presentation
from pomona.record.rows import Evaluation, RoundRow

EVENTS = "events.jsonl"
MAX_NAMES = 10**4  # clients, and classes


def _figures(value: Any) -> Any:
    """Reject values other than numbers, lists and tables of numbers."""
    for leaf in _leaves(value):
        if isinstance(leaf, str) or (leaf is not None and not abs(leaf) <= HUGE):
            raise ValueError("must be a number, or a list of numbers")
    return value


def _require_rectangular(counts: list[list[int]]) -> list[list[int]]:
    """Reject a table whose rows differ in length."""
    if len({len(row) for row in counts}) > 1:
        raise ValueError("must be rows of equal lengths")
    return counts


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


Figure = Measured | None
Figures = Annotated[Any, AfterValidator(_figures)]
Counts = Annotated[list[list[Count]], AfterValidator(_require_rectangular)]
Interval = Annotated[list[Figure], Field(min_length=2, max_length=2)]
Group = Annotated[list[Measured], Field(min_length=3, max_length=3)]
Edges = Annotated[list[Annotated[Measured, Field(gt=0)]], Field(max_length=1000)]
MetricName = Annotated[
    str, StringConstraints(min_length=1, max_length=202, pattern=r"^[A-Za-z0-9 _.:+-]+$")
]
Names = Annotated[list[Line], Field(max_length=MAX_NAMES)]


class Facts(BaseModel):
    """Base of events that state facts."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class _Means(Facts):
    clients: list[Figure] = []
    mean: Figure = None
    pooled: Figure = None


class _Frozen(Facts):
    parameters: Count
    sha256: Sha256


class _Subgroups(Facts):
    column: Line
    names: Names
    test: list[list[ClientId]]


class _Data(Facts):
    name: Line = ""
    fingerprint: Line = ""


class StartEvent(Facts):
    """Start of a run."""

    method: Line
    headline: Annotated[list[Line], Field(min_length=2, max_length=2)]
    presentation: Presentation | None = None
    clients: Annotated[Names, Field(min_length=1)]
    classes: Names = []
    sizes: dict[Label, list[Count]] = {}
    label_counts: Counts | None = None
    groups: list[ClientId] = []
    target_groups: list[ClientId] = []
    data: _Data = _Data()
    partition_sha256: Line = ""
    test_rows: Names = []
    parameters: Count = 0
    frozen: _Frozen | None = None
    model: Line | None = None
    metric: Line = ""
    targets: Targets = "classes"
    edges: Edges = []
    constant: dict[Label, dict[MetricName, _Means]] | None = None
    versions: dict[Label, Line] = {}
    chosen: Names | None = None
    subgroups: _Subgroups | None = None
    privacy: Line | None = None
    input_shape: list[Count] = []
    preprocessing: Annotated[list[Preprocessing], Field(max_length=MAX_CLIENTS)] = []
    shared_samples: Count = 0


class _AtThreshold(Facts):
    """Metrics of one class or label."""

    __pydantic_extra__: dict[str, Figures]

    outcome: ClientId
    samples: Count
    positives: Count
    units: Count | None = None
    threshold: Measured
    chosen: bool
    sensitivity: Figure = None
    specificity: Figure = None
    ppv: Figure = None
    npv: Figure = None
    auprc: Figure = None
    brier: Figure = None
    calibration_in_the_large: Figure = None
    calibration_intercept: Figure = None
    calibration_slope: Figure = None
    calibration: list[Group] = []
    intervals: dict[MetricName, Interval | None] = {}


class FinalEvent(Facts):
    """All metrics of one model; keys without a field here are metrics too."""

    __pydantic_extra__: dict[str, Figures]

    model: Label
    when: Label
    split: Label
    client: ClientId
    samples: Count
    confusion: Counts | None = None
    intervals: dict[MetricName, Interval | None] | None = None
    outcomes: Annotated[list[_AtThreshold], Field(max_length=MAX_NAMES)] = []


class _Term(Facts):
    """A coefficient: what it compares, the logarithm of a ratio or a difference, and its error."""

    column: Line
    change: Label
    step: Line
    reference: Line
    outcome: Line
    estimate: Measured
    error: Figure


class CoefficientsEvent(Facts):
    """The coefficients of a linear model: that of a client, or of all."""

    model: Label
    when: Label
    client: ClientId | None
    measure: Label
    rows: Count
    distance: Figure
    freedom: Count | None
    reason: Line
    terms: list[_Term]


class _RoundScore(Facts):
    test: Figure
    round: Number
    validation: Figure = None


class _Outcome(Facts):
    last: _RoundScore | None = None
    best_validation: _RoundScore | None = None
    best_test: _RoundScore | None = None
    best_test_pooled: _RoundScore | None = None
    chosen_by: Line | None = None
    clients: dict[Label, Figures] = {}
    honest: dict[Label, Figures] = {}
    loss: Figure = None
    accuracy: Figure = None


class _Unseen(Facts):
    clients: dict[Label, Figure]
    mean: Figure


class _GroupCost(Facts):
    rows: list[Number]
    clients: list[Figure]


class _PrivacyCost(Facts):
    epsilon: Figure
    delta: Figure
    clients: list[Figure]
    void: Line | None = None
    alone: list[Figure] | None = None
    unit: Line = "row"
    groups: _GroupCost | None = None


class _Summary(Facts):
    method: Line = ""
    headline: Line = ""
    metric: Line = ""
    minimised: Line = ""
    diverging: Line = ""
    stopped: Line = ""
    rounds: Number = 0
    models: dict[Line, _Outcome] = {}
    unseen: dict[Line, _Unseen] = {}
    bytes_down: Count = 0
    bytes_up: Count = 0
    seconds: Seconds = 0.0
    state_files_bytes: Count = 0
    busy_share: Annotated[float, Field(ge=0, le=1)] | None = None
    privacy: _PrivacyCost | None = None
    backdoor: _Unseen | None = None


class EndEvent(Facts):
    """Outcome of a run."""

    summary: _Summary


def _require_equal_lengths(row: RoundRow | Evaluation) -> RoundRow | Evaluation:
    """Check that every column has one value per client."""
    columns: list[Any]
    if isinstance(row, RoundRow):
        columns = [row.cohort, row.loss, row.bytes_down, row.bytes_up, *row.info.values()]
    else:
        columns = [row.clients, row.samples, row.loss, row.accuracy, row.value]
        columns += [row.interval or row.value]
    lengths = {-1 if isinstance(c, np.ndarray) and not c.ndim else len(c) for c in columns}
    if len(lengths) > 1:
        raise ValueError("there must be one value for each client")
    return row


_EVALUATION = TypeAdapter[Any](Annotated[Evaluation, AfterValidator(_require_equal_lengths)])
ROWS = {
    "round": TypeAdapter[Any](Annotated[RoundRow, AfterValidator(_require_equal_lengths)]),
    "evaluation": _EVALUATION,
    "unseen": _EVALUATION,
    "note": TypeAdapter[Any](Note),
}
FACTS: dict[str, type[Facts]] = {
    "start": StartEvent,
    "final": FinalEvent,
    "coefficients": CoefficientsEvent,
    "end": EndEvent,
}
Event: TypeAlias = tuple[str, Any]
"""Type and content: a ``RoundRow``, an ``Evaluation``, a ``Note``, or a dict of facts."""


def read(line: str | bytes) -> Event:
    """Parse a line of ``events.jsonl``; an event type of a later version has no content.

    Raises ValueError with a phrase.
    """
    event = from_json(line, allow_inf_nan=False)  # stops at a nesting of 200
    if not (isinstance(event, dict) and isinstance(event.get("event"), str)):
        raise ValueError("not an event")
    event_type = event.pop("event")
    try:
        if row := ROWS.get(event_type):
            return event_type, row.validate_python(event)
        if facts := FACTS.get(event_type):
            return event_type, facts.model_validate(event).model_dump(exclude_unset=True)
    except ValidationError as fault:
        raise ValueError(f"{event_type}.{first(fault)}") from None
    return event_type, {}
