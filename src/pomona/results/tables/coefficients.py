"""The table of a linear model's coefficients: odds ratios, hazard ratios, differences."""

from collections.abc import Sequence
from math import floor, log10

from pomona.core.errors import listed
from pomona.core.table import PLACEHOLDER, Table
from pomona.record.coefficients import UNDETERMINED, Coefficient, coefficients
from pomona.results.run_numbers import Run
from pomona.results.wording import capital

READING = (
    "The change by one step of a column, in the table's own units, with all other columns equal: "
    "a ratio multiplies odds or hazards, and is 1 without an effect. Intervals are those of "
    "maximum likelihood, for independent rows of which the linear model holds. A small step, such "
    "as a day, has a ratio near 1: pomona coefficients RUN --per COLUMN=STEP takes another."
)


def of_runs(runs: Sequence[Run]) -> Table:
    """Return the coefficients of some runs' linear models; no rows without any."""
    return table([(run.label if len(runs) > 1 else "", coefficients(run.result)) for run in runs])


def table(by_run: Sequence[tuple[str, Sequence[Coefficient]]]) -> Table:
    """Return coefficients as a table; ``by_run``: a run's label, if any, and its coefficients."""
    every = [(label, c) for label, run in by_run for c in run]
    measures = list(dict.fromkeys(c.measure for _, c in every))
    title = capital(" and ".join(f"{measure}s" for measure in measures)) or "Coefficients"
    value = capital(measures[0]) if len(measures) == 1 else "Value"
    notes = [f"No interval for {listed(names)}: {why}." for why, names in _reasons(every).items()]
    return Table(
        "coefficients",
        title,
        [READING, *notes],
        ["Model of", "Outcome", "Column", "Step", "From", value, "95 % interval"],
        [_row(label, c) for label, c in every],
        range(5),
    )


def _reasons(every: Sequence[tuple[str, Coefficient]]) -> dict[str, list[str]]:
    """Return each reason for a missing interval, with the models, or their columns, it is of."""
    reasons: dict[str, dict[str, None]] = {}
    for label, c in every:
        term = f" ({c.column}, {c.step})" if c.reason == UNDETERMINED else ""
        reasons.setdefault(c.reason, {})[_model(label, c) + term] = None
    return {reason: [*names] for reason, names in reasons.items() if reason}


def _model(label: str, coefficient: Coefficient) -> str:
    name = coefficient.client or f"all clients ({coefficient.model})"
    return f"{label}: {name}" if label else name


def _row(label: str, c: Coefficient) -> list[str]:
    numbers = [number for number in (c.value, c.low, c.high) if number is not None]
    no_effect = 0.0 if c.measure == "difference" else 1.0
    value, *limits = _rounded(numbers, no_effect) if numbers else [PLACEHOLDER]
    source, interval = c.reference or PLACEHOLDER, " to ".join(limits) or PLACEHOLDER
    return [_model(label, c), c.outcome, c.column, c.step, source, value, interval]


def _rounded(numbers: Sequence[float], no_effect: float) -> list[str]:
    """Format a value, and its limits if any, to three digits, and to two of the distance to the
    limit, or without one to no effect: near 1, a ratio needs more.
    """
    distance = abs(numbers[-1] - numbers[0]) or abs(numbers[0] - no_effect) or 1.0
    exponents = [floor(log10(abs(number) or 1.0)) for number in numbers]
    digits = [min(max(3, e - floor(log10(distance)) + 2), 12) for e in exponents]
    return [f"{x:#.{k}g}".rstrip(".") for x, k in zip(numbers, digits, strict=True)]
