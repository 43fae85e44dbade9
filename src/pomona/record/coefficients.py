"""Coefficients of linear models on record: ratios, or differences of numbers, with intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, isfinite
from typing import Any, Literal

from pomona.core.errors import ConfigError, suggestion
from pomona.record.result import Result

Measure = Literal["odds ratio", "relative risk ratio", "hazard ratio", "difference"]
Change = Literal["number", "date", "category", "gap"]
"""What a coefficient is about: one unit of a number, a day, a category, or a gap."""

UNDETERMINED = "not determined by the rows, in which it does not vary or follows from other columns"
OUT_OF_RANGE = "the ratio of this step is beyond the range of numbers; take another step (per)"
LARGEST = 700.0  # logarithm of a ratio that float64 represents


@dataclass(frozen=True)
class Coefficient:
    """What one step of a column changes, all other columns being equal.

    Attributes:
        client: the client whose model it is; empty for the model that all share.
        model: its name and stage.
        measure: what ``value`` is: a ratio, which is 1 without an effect, or a difference of
            numbers.
        column: of the table.
        step: the change: a number of the column's own units, a category, or a gap.
        reference: the category, or for a gap the filled-in value, from which it is a change.
        outcome: what changes: the odds of a class against another, of a label or of an event.
        value: of the trained model; None if out of the range of numbers.
        low, high: 95 % interval; None without one.
        reason: why there is no interval; empty if there is.
    """

    client: str
    model: str
    measure: Measure
    column: str
    step: str
    reference: str
    outcome: str
    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


def coefficients(result: Result, per: Mapping[str, float] | None = None) -> list[Coefficient]:
    """Return the coefficients of a run's linear models, in the table's own units: first those of
    the model that all clients share, then each client's.

    Odds ratios of classes, labels and (of a ``logistic`` model of times) of the event in an
    interval; relative risk ratios of more than two classes against the first; hazard ratios of
    ``proportional-hazards``; differences of numbers. An interval exists where the model is at the
    optimum of its rows' likelihood (docs/statistics.md).

    Args:
        result: a run with a linear model of a table; others have none.
        per: steps of columns other than 1, such as ``{"age": 10}``; of dates in days.

    Raises:
        ConfigError: ``per`` names a column without units.

    >>> import pomona
    >>> pomona.coefficients(pomona.run(clients=3, rounds=1, lr=0.1))
    []
    """
    steps = dict(per or {})
    numbers = {
        term["column"]
        for event in result.coefficients
        for term in event["terms"]
        if term["change"] in ("number", "date")
    }
    for column, step in steps.items():
        if column not in numbers:
            raise ConfigError(
                f"no coefficient of a number {column!r}: {suggestion(column, numbers)}"
            )
        if not isfinite(step) or not step:
            raise ConfigError(
                f"a step of {step:g} in {column!r}; give a finite number other than 0"
            )
    return [c for event in result.coefficients for c in _of_event(event, result, steps)]


def _of_event(
    event: Mapping[str, Any], result: Result, steps: Mapping[str, float]
) -> Iterator[Coefficient]:
    """Yield the coefficients of one model."""
    client = event["client"]
    name = "" if client is None else result.about["clients"][client]
    for term in event["terms"]:
        step, label = _step(term, steps)
        exact, reason = _estimates(event, term, step)
        low, high = sorted(exact[1:]) or (None, None)
        yield Coefficient(
            client=name,
            model=f"{event['model']}, {event['when']}",
            measure=event["measure"],
            column=term["column"],
            step=label,
            reference=term["reference"],
            outcome=term["outcome"],
            value=exact[0] if exact else None,
            low=low,
            high=high,
            reason=reason,
        )


def _step(term: Mapping[str, Any], steps: Mapping[str, float]) -> tuple[float, str]:
    """Return the step of a term's column, and the step in words."""
    is_date = term["change"] == "date"
    step = steps.get(term["column"], 1.0) if is_date or term["change"] == "number" else 1.0
    return step, term["step"] if step == 1 else f"{step:g}{' days' if is_date else ''}"


def _estimates(
    event: Mapping[str, Any], term: Mapping[str, Any], step: float
) -> tuple[list[float], str]:
    """Return a term's value for a step, and its limits if it has any; and why something lacks."""
    exact = [step * value for value in (term["estimate"], *_limits(term, event["freedom"]))]
    reason = event["reason"] or ("" if len(exact) > 1 else UNDETERMINED)
    if event["measure"] == "difference":
        return exact, reason
    if max(map(abs, exact)) > LARGEST:
        return [], OUT_OF_RANGE
    return [exp(value) for value in exact], reason


def _limits(term: Mapping[str, Any], freedom: int | None) -> list[float]:
    """Return the ends of the 95 % interval: Student's for differences, else normal; empty without
    one.
    """
    from scipy.special import ndtri, stdtrit  # late, as all of SciPy

    if term["error"] is None:
        return []
    reach = float(ndtri(0.975) if freedom is None else stdtrit(freedom, 0.975)) * term["error"]
    return [term["estimate"] - reach, term["estimate"] + reach]
