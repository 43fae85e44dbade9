"""The table of a linear model's coefficients: odds ratios, hazard ratios, differences."""

from collections.abc import Sequence

from pomona.core.table import PLACEHOLDER, Table
from pomona.record.coefficients import Coefficient, coefficients
from pomona.results.run_numbers import Run
from pomona.results.wording import capital

READING = (
    "The change by one step of a column, in the table's own units, with all other columns equal: "
    "a ratio multiplies odds or hazards, and is 1 without an effect. Intervals are those of "
    "maximum likelihood, for independent rows of which the linear model holds. Ratios that are all "
    "1 are those of a small step: pomona coefficients RUN --per COLUMN=STEP takes another."
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
    reasons = dict.fromkeys((c.reason, _model(label, c)) for label, c in every if c.reason)
    notes = [f"No interval for {model}: {reason}." for reason, model in reasons]
    return Table(
        "coefficients",
        title,
        [READING, *notes],
        ["Model of", "Outcome", "Column", "Step", "From", value, "95 % interval"],
        [_row(label, c) for label, c in every],
        range(5),
    )


def _model(label: str, coefficient: Coefficient) -> str:
    name = coefficient.client or f"all clients ({coefficient.model})"
    return f"{label}: {name}" if label else name


def _row(label: str, c: Coefficient) -> list[str]:
    limits = PLACEHOLDER if c.low is None or c.high is None else f"{c.low:.3g} to {c.high:.3g}"
    source = c.reference or PLACEHOLDER
    value = PLACEHOLDER if c.value is None else f"{c.value:.3g}"
    return [_model(label, c), c.outcome, c.column, c.step, source, value, limits]
