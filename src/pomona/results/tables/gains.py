"""Tables of gains: one row per run over all clients, then one row per client for each run."""

from typing import get_args

from pomona.core.table import Table
from pomona.record.paired_gain import Gain, Verdict
from pomona.results.gain_presentation import (
    Gains,
    by_client,
    detectable,
    over_training_alone,
    value_and_interval,
)
from pomona.results.run_numbers import Run
from pomona.results.wording import capital, listing, slug

OVER_SEEDS = (
    "With several seeds, it is the mean over seeds, paired by seed, and the intervals also cover "
    "other seeds."
)


def gain_tables(runs: list[Run]) -> list[Table]:
    """Return gains over local training: a table of runs, then a table of clients for each run."""
    compared = over_training_alone(runs)
    return [_overall(compared), *map(_by_client, compared)] if compared else []


def _overall(compared: list[Gains]) -> Table:
    metric, base = compared[0].run.metric, compared[0].base
    several = any(gains.run.seeds for gains in compared)
    note = (
        f"Gain of each run in {metric.title} over {base.label}, training alone, mean over clients; "
        "more than 0 is better. The intervals compare both models on the same test samples; where "
        "one includes 0, there is no significant difference: “not worse” rules out a loss of the "
        "margin (verdict.margin), and the last column is the smallest gain that the samples would "
        "show with 80 % probability. Verdicts on several runs or clients are corrected together "
        "(Holm): a difference may not be significant although its own interval excludes 0."
    )
    unit = " in percentage points" if metric.percent else ""
    header = ["Run", *["Seeds"] * several, f"Gain{unit}", "95 % interval", "On average"]
    header += [*(f"{verdict.capitalize()} for" for verdict in get_args(Verdict)), "Detectable gain"]
    rows = [_row(gains, gains.mean, len(compared), several) for gains in compared if gains.mean]
    notes = [note + (" " + OVER_SEEDS if several else "") + _sides(compared)]
    return Table("gains", "Does federation help?", notes, header, rows, {0, 3 + several})


def _row(gains: Gains, mean: Gain, runs: int, several: bool) -> list[str]:
    """Return a run's row: its mean gain, and how many clients have each verdict."""
    metric, seeds = gains.run.metric, [str(mean.seeds)] * several
    counts = [str(len(gains.with_verdict(v))) for v in get_args(Verdict)]
    gain = *value_and_interval(metric, mean), str(gains.verdict)
    return [gains.run.label, *seeds, *gain, *counts, detectable(metric, mean, runs)]


def _sides(compared: list[Gains]) -> str:
    """Name the models that are compared: of each run, and of training alone."""
    by_model: dict[str, list[str]] = {}
    for gains in compared:
        if gains.mean and gains.mean.model:
            by_model.setdefault(gains.mean.model, []).append(gains.run.label)
            by_model.setdefault(gains.mean.base_model, []).append(gains.base.label)
    texts = (f"{listing(list(dict.fromkeys(names)))}: {model}" for model, names in by_model.items())
    return f" Compared on test data: {'; '.join(texts)}." if by_model else ""


def _by_client(gains: Gains) -> Table:
    run, base, metric = gains.run, gains.base, gains.run.metric
    grouped = any(gain and gain.pairs < gain.rows for gain in gains.clients)
    header = ["Client", "Test groups" if grouped else "Test samples"]
    header += [capital(f"{metric.heading}, alone"), f"with {run.label}"]
    header += ["Gain", "95 % interval", "Verdict", "Detectable gain"]
    rows = [
        [
            run.client(c),
            f"{gain.pairs:,}",
            metric.number(base.values.get(c)),
            metric.number(run.values.get(c)),
            *value_and_interval(metric, gain),
            verdict,
            detectable(metric, gain, gains.comparisons),
        ]
        for c, (gain, verdict) in enumerate(zip(gains.clients, gains.verdicts, strict=True))
        if gain and verdict
    ]
    return Table(f"gains-{slug(run.label)}", run.label, [by_client(gains)], header, rows, {0, 6})
