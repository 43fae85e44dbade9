"""The table of times to an event: how well each client's risks and survival are predicted."""

from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.metric import METRICS
from pomona.metrics.survival import FIGURES
from pomona.results.run_numbers import Run, leader, records
from pomona.results.wording import capital


def survival_table(runs: list[Run]) -> list[Table]:
    """The figures of the leading run's clients, with the worst of each figure in a line of its own; none of others."""
    run = leader([run for run in runs if run.result.about.get("targets") == "survival" and records(run)])
    if run is None:
        return []
    found = records(run)
    worst = [METRICS[name].worst(record.get(name) for record in found) for name in FIGURES]
    return [
        Table(
            "survival-by-client",
            "Survival by client",
            [
                f"{run.label}, {run.model}: each client's own test samples, with 95 % intervals. Both C-indices and "
                "the AUROC are 0.5 for guessing, and 1 at best; the integrated Brier score is 0 at best, and 0.25 for "
                "always saying one half. Inverse probabilities of censoring are of the client's own test samples.",
            ],
            ["Client", "Test samples", "Events", *(capital(METRICS[name].heading) for name in FIGURES)],
            [
                *(
                    [
                        run.client(int(record["client"])),
                        f"{record['samples']:,}",
                        f"{record.get('events', 0):,}",
                        *(_cell(record, name) for name in FIGURES),
                    ]
                    for record in found
                ),
                ["worst client", "", "", *(METRICS[name].number(v) for name, v in zip(FIGURES, worst, strict=True))],
            ],
            range(1),
        )
    ]


def _cell(record: dict[str, Any], name: str) -> str:
    value, bounds = record.get(name), (record.get("intervals") or {}).get(name)
    if value is None:
        return NOTHING
    shown = METRICS[name].number(value)
    return f"{shown} ({bounds[0]:.3f} to {bounds[1]:.3f})" if bounds and None not in bounds else shown
