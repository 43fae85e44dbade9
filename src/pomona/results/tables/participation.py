"""Table of who took part: each client's training samples, and the rounds of each run in which it
trained.
"""

from collections import Counter
from collections.abc import Sequence

from pomona.core.table import PLACEHOLDER, Table
from pomona.results.run_numbers import Run


def participation(runs: Sequence[Run]) -> Table:
    """Return the table; without rows if every client trained in every round of every run."""
    first = runs[0]
    names = first.result.about["clients"]
    runs = [run for run in runs if run.result.about["clients"] == names]
    rounds, clients = {run: rounds_by_client(run) for run in runs}, range(len(names))
    complete = all(
        counts[c] == len(run.result.rounds) for run, counts in rounds.items() for c in clients
    )
    sizes = training_samples(first)
    total = sum(sizes) or 1
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
        []
        if complete
        else [
            [
                first.client(client),
                f"{sizes[client]:,}" if sizes else PLACEHOLDER,
                f"{100 * sizes[client] / total:.1f}" if sizes else PLACEHOLDER,
                *(str(counts[client]) for counts in rounds.values()),
            ]
            for client in clients
        ],
        range(1),
    )


def rounds_by_client(run: Run) -> Counter[int]:
    """Return the number of rounds in which each client trained."""
    return Counter(client for row in run.result.rounds for client in row.cohort)


def training_samples(run: Run) -> list[int]:
    """Return the clients' training samples; empty if they are not on record."""
    return list(run.result.about.get("sizes", {}).get("train", ()))
