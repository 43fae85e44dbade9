"""Table of who took part: each client's training samples, and the rounds of each run in which it
trained.
"""

from collections import Counter
from collections.abc import Sequence

from pomona.core.table import Table
from pomona.results.run_numbers import Run


def participation(runs: Sequence[Run]) -> Table:
    """Return the table of the runs with the first one's clients; without rows if every client
    trained in every round, or their training samples are not on record.
    """
    first = runs[0]
    names, sizes = first.result.about["clients"], training_samples(first)
    runs = [run for run in runs if run.result.about["clients"] == names]
    rounds = [rounds_by_client(run) for run in runs]
    return Table(
        "participation",
        "Who took part",
        ["Rounds in which a client trained, and its share of all training samples."],
        [
            "Client",
            "Training samples",
            "Share in %",
            *(f"Rounds of {run.label}, of {len(run.result.rounds)}" for run in runs),
        ],
        [
            [first.client(client), f"{n:,}", f"{100 * n / sum(sizes):.1f}"]
            + [str(counts[client]) for counts in rounds]
            for client, n in enumerate(sizes)
        ]
        if any(map(has_absences, runs))
        else [],
        range(1),
    )


def rounds_by_client(run: Run) -> Counter[int]:
    """Return the number of rounds in which each client trained."""
    return Counter(client for row in run.result.rounds for client in row.cohort)


def has_absences(run: Run) -> bool:
    """Return whether a client missed a round."""
    return any(len(row.cohort) < run.result.clients for row in run.result.rounds)


def training_samples(run: Run) -> list[int]:
    """Return the clients' training samples; empty if they are not on record, or none."""
    sizes = list(run.result.about.get("sizes", {}).get("train", ()))
    return sizes if any(sizes) else []
