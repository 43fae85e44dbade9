"""Tables of gains: one row per run over all clients, then one row per client for each run."""

from typing import get_args

from pomona.core.table import Table
from pomona.record.paired_gain import Verdict, jointly
from pomona.results.gain_presentation import Gains, by_client, gained_over, interval, signed
from pomona.results.run_numbers import Run, baseline
from pomona.results.seeds import over_seeds
from pomona.results.wording import capital, listing, slug

OVER_SEEDS = (
    "Of several seeds it is the mean over seeds, paired by seed, and the intervals cover "
    "other seeds as well."
)


def gain_tables(runs: list[Run]) -> list[Table]:
    """Return gains over local training: a table of runs, then a table of clients for each run."""
    runs = over_seeds(runs)
    known = [found for found in gained_over(runs, baseline(runs, runs[0])) if found.mean]
    return [_overall(known), *map(_by_client, known)] if known else []


def _overall(known: list[Gains]) -> Table:
    metric, base = known[0].run.metric, known[0].base
    several = any(found.run.seeds for found in known)
    return Table(
        "gains",
        "Does federation help?",
        [
            f"What each run gains in {metric.title} over {base.label}, training alone, on average "
            "over clients. More than 0 is better. The intervals compare both models on the same "
            "test samples; where one holds 0, there is no difference that this data can show. Of "
            "several runs, and of clients, verdicts are given for all at once, after Holm's "
            "correction: one may be open where its own interval is not."
            + (" " + OVER_SEEDS if several else "")
            + _sides(known)
        ],
        [
            "Run",
            *(["Seeds"] if several else []),
            f"Gain{' in percentage points' if metric.percent else ''}",
            "95 % interval",
            "On average",
            "Better for",
            "Worse for",
            "Cannot tell",
        ],
        [
            [
                found.run.label,
                *([str(found.mean.seeds)] if several else []),
                signed(metric, found.mean.value),
                interval(metric, found.mean),
                verdict,
                *(str(len(found.with_verdict(verdict))) for verdict in get_args(Verdict)),
            ]
            for found, verdict in zip(known, jointly([one.mean for one in known]), strict=True)
            if found.mean and verdict
        ],
        words={0, 4 if several else 3},
    )


def _sides(known: list[Gains]) -> str:
    """Name the models that are compared: of each run, and of training alone."""
    judged: dict[str, list[str]] = {}
    for found in known:
        if found.mean and found.mean.judged:
            judged.setdefault(found.mean.judged, []).append(found.run.label)
            judged.setdefault(found.mean.base, []).append(found.base.label)
    each = (f"{listing(list(dict.fromkeys(names)))}: {model}" for model, names in judged.items())
    return f" Compared on test data: {'; '.join(each)}." if judged else ""


def _by_client(found: Gains) -> Table:
    run, base, metric = found.run, found.base, found.run.metric
    return Table(
        f"gains-{slug(run.label)}",
        run.label,
        [by_client(found)],
        [
            "Client",
            "Test groups"
            if any(gain and gain.pairs < gain.rows for gain in found.clients)
            else "Test samples",
            capital(f"{metric.heading}, alone"),
            f"with {run.label}",
            "Gain",
            "95 % interval",
            "Verdict",
        ],
        [
            [
                run.client(c),
                f"{gain.pairs:,}",
                metric.number(base.values.get(c)),
                metric.number(run.values.get(c)),
                signed(metric, gain.value),
                interval(metric, gain),
                verdict if gain.ends else "too few to tell",
            ]
            for c, (gain, verdict) in enumerate(zip(found.clients, found.verdicts, strict=True))
            if gain and verdict
        ],
        words={0, 6},
    )
