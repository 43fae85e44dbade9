"""The measured table of docs/guides/choose-a-method.md: methods on three small federations, over seeds.

    python examples/choose_a_method.py              # every method of the table, three seeds: some minutes on two cores
    python examples/choose_a_method.py apple ditto --seeds 1 --rounds 5

Digits (8x8 images), 12 clients, an MLP 64-64-10, one epoch a round, batch 16, lr 0.3. A cell is the test accuracy of
the model that the method's paper judges, in % in the last round, mean over clients, then mean and standard deviation
over seeds; in brackets the share of clients that do worse than training alone on the same data.
"""

import argparse
from collections.abc import Iterable, Iterator

import numpy as np

import pomona

SETTINGS = {
    "hidden groups": {"name": "dirichlet", "beta": 1.0, "turn_groups": 4},
    "label skew": {"name": "dirichlet", "beta": 0.1},
    "iid": {"name": "iid"},
}
ALONE = "separate"
TUNED = {"apple": {"dr_lr": 0.01, "mu": 0.1}}  # the demo's; every other method has its defaults
METHODS = [
    *("separate", "fedavg", "fedavg-ft", "fedprox-ft", "scaffold", "feddyn", "apfl", "fedamp", "heurfedamp", "fedfomo"),
    *("apple", "fedala", "per-fedavg", "fedrep", "lg-fedavg", "pfedme", "ditto", "fedphp", "partialfed"),
]


def accuracies(method: str, partition: dict[str, object], seed: int, rounds: int) -> np.ndarray:
    """Test accuracy (clients,) of the judged model in the last round; a client without test samples is left out."""
    config = pomona.Config(
        method={"name": method, **TUNED.get(method, {})},
        partition=partition,
        rounds=rounds,
        batch_size=16,
        lr=0.3,
        seed=seed,
        eval_every=rounds,
    )
    result = pomona.run(config)
    last = result.curve(*config.method.method().card.headline)[-1]
    return np.array([a for a in last.accuracy if a is not None])


def cell(method: str, alone: list[np.ndarray], partition: dict[str, object], rounds: int) -> str:
    """One cell of the table; ``alone`` are the accuracies (clients,) of Separate, one a seed."""
    try:
        runs = [accuracies(method, partition, seed, rounds) for seed in range(len(alone))]
    except pomona.DivergedError:
        return "diverged"
    means = [100 * a.mean() for a in runs]
    hurt = np.mean(np.concatenate([a < b for a, b in zip(runs, alone, strict=True)]))
    return f"{np.mean(means):.1f} +- {np.std(means):.1f} ({100 * hurt:.0f} %)"


def table(methods: Iterable[str], seeds: int, rounds: int) -> Iterator[str]:
    """The table's lines, in Markdown."""
    yield f"| method | {' | '.join(SETTINGS)} |"
    yield "| --- |" + " --- |" * len(SETTINGS)
    alone = {name: [accuracies(ALONE, p, seed, rounds) for seed in range(seeds)] for name, p in SETTINGS.items()}
    for method in methods:
        cells = [cell(method, alone[name], partition, rounds) for name, partition in SETTINGS.items()]
        yield f"| {method} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    for line in table(asked.methods, asked.seeds, asked.rounds):
        print(line, flush=True)
