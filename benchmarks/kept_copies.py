"""APPLE under a budget: versions of cores that clients keep, their memory, and growth of a round
with clients.

    python benchmarks/kept_copies.py [--quick] [key=value ...]

Versions: after R rounds of N clients that download M cores each per round, the number of distinct
cores kept as copies, over the N x N copies. Requests are drawn by the method's rule; no client
trains, and the relationships stay at p_0.
Rounds: M = 5, batch 32, the same total number of training images, spread over more and more
clients; one process with one thread, images of noise, no evaluation. Processor seconds are those of
the last of several rounds; "a step" includes a client's work once per round. The bank's bytes are
those of its rows, each counted once.
"""

from dataclasses import dataclass
from time import process_time

import numpy as np
import torch

from growth import METHODS, TEST
from growth import SETTINGS as GROWING
from pomona.config import read_overrides, resolve
from pomona.core.round import Roster
from pomona.core.toml import Tree
from pomona.methods.mixtures.apple import APPLE, choose
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, publish

SETTINGS: Tree = {**GROWING, "method": METHODS["apple"]}


@dataclass(frozen=True)
class Size:
    """Federations (N, M) and rounds for counting versions; clients and rounds for timing."""

    federations: tuple[tuple[int, int], ...]
    after_rounds: tuple[int, ...]
    clients: tuple[int, ...]
    rounds: int
    images: int
    model: Tree


FULL = Size(
    ((100, 5), (500, 1), (500, 5), (500, 20)),
    (5, 20, 50, 100, 200),
    (12, 50, 100, 500),
    3,
    15_000,
    {"name": "cnn"},
)
QUICK = Size(((4, 1), (4, 2)), (2, 3), (3, 4), 2, 24, {"name": "mlp", "hidden": [4]})


def versions(N: int, M: int, rounds: tuple[int, ...]) -> list[int]:
    """Number of distinct cores that N clients keep copies of, including the initial ones, after
    given rounds.
    """
    settings, roster, p = APPLE(budget=M), Roster((1,) * N), torch.full((N,), 1 / N)
    received, last_received, counts = (
        torch.zeros(N, N, dtype=torch.bool),
        np.zeros((N, N), dtype=np.int64),
        [],
    )
    for number in range(2, max(rounds) + 1):  # in round 1 nothing comes
        for i in range(N):
            requests = choose(settings, p, received[i], roster.member_mask, i, roster, 0, number)
            received[i, requests] = True
            last_received[i, requests] = number
        np.fill_diagonal(last_received, 0)
        if number in rounds:
            counts.append(1 + sum(len(np.unique(column[column > 0])) for column in last_received.T))
    return counts


def alive(size: Size) -> Table:
    """The first table."""
    rows = {}
    for N, M in size.federations:
        counts = versions(N, M, size.after_rounds)
        rows[f"N = {N}, M = {M}"] = {
            f"after {r}": c / N**2 for r, c in zip(size.after_rounds, counts, strict=True)
        }
    return publish("Versions that somebody keeps, over N x N copies", rows, 1)


def growth(size: Size, arguments: list[str]) -> Table:
    """The second table."""
    overrides, dataset = read_overrides(arguments), noise(round(size.images / (1 - TEST)))
    rows, first = {}, 0.0
    for n in size.clients:
        run = Rounds(
            scenario_of(resolve(SETTINGS, {"clients": n, "model": size.model}, overrides), dataset)
        )
        for _ in range(size.rounds):
            start_time = process_time()
            run.run()
            seconds = process_time() - start_time
        first, d = first or seconds, run.state.cores.shape[1]
        copies = [path for path in run.transport.copies.stored(run.ids) if path.startswith("row.")]
        rows[f"{n} clients"] = {
            "cpu s a round": seconds,
            "growth": seconds / first,
            "versions": len(copies),
            "bank GB": len(copies) * 4 * d / 1e9,
            "N x N GB": n * n * 4 * d / 1e9,
        }
    config = run.config
    notes = {
        "model": config.model.name,
        "batch": config.batch_size,
        "training_images": size.images,
        "threads": 1,
    }
    return publish(f"APPLE, M = 5: round {size.rounds}", rows, 1, **notes)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    return [alive(size), growth(size, arguments)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
