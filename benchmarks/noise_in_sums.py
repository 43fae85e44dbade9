"""What others' noise saves: FedAvg at equal epsilon by its own noise alone and in secure sums.

    python benchmarks/noise_in_sums.py [--quick]

One step of all samples a round. Noise is the least whose projected epsilon, at delta = 1 / (10 n)
of the largest client, is small enough for every client. "accuracy" is the headline metric on test
samples after the last round, mean over clients and seeds; "more" is what others' noise adds to it,
mean over seeds, and "error" the standard error of that. The hospitals' files are read from a folder
``heart_disease`` where the command is called.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import pomona
from pomona.audit.audit import at_epsilon
from pomona.config import merge, resolve
from pomona.core.toml import read_file
from pomona.privacy.settings import Privacy
from pomona.scenario import Scenario
from timing import Table, chosen, publish

HEART = Path(__file__).parents[1] / "examples" / "heart-disease.toml"
DIGITS = {
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "beta": 0.5},
    "model": {"name": "logistic"},
    "clients": 12,
    "lr": 2.0,
}
COMMON = {"method": {"name": "fedavg"}, "local_steps": 1, "batch_size": 10**4, "workers": 1}
# the settings of each federation, the fewest clients in a sum, and of these the honest
FULL = (
    {
        "heart disease, 4 hospitals": (HEART, {"lr": 1.0, "rounds": 30}, 4, 3),
        "digits, 12 clients": (None, {**DIGITS, "rounds": 30}, 12, 9),
    },
    (2.0, 8.0),
    5,
)
QUICK = ({"digits": (None, {**DIGITS, "clients": 3, "rounds": 1}, 3, 2)}, (8.0,), 1)


def reached(tree: dict[str, Any], seed: int, privacy: Privacy | None = None) -> float:
    """The headline metric after the last round, mean over clients."""
    tree = {**tree, "seed": seed}
    if privacy:
        seeded = privacy.model_copy(update={"seed": seed})
        tree["privacy"] = seeded.model_dump(mode="json", exclude_none=True)
    return float(pomona.run(resolve(tree)).curve("global", "received")[-1].mean)


def compared(title: str, federation: tuple[Any, ...], epsilons: Any, seeds: int) -> Table:
    """One federation at each epsilon."""
    file, settings, minimum, honest = federation
    tree = read_file(file) if file else {}
    merge(tree, {**COMMON, **settings, "secure_aggregation": {"max_norm": 1e3, "minimum": minimum}})
    scenario = Scenario.prepare(resolve(tree))
    largest = max(len(c.train) for c in scenario.partition.clients)
    plain = np.array([reached(tree, seed) for seed in range(seeds)])
    rows: dict[str, dict[str, object]] = {
        "without privacy": {"sigma": 0.0, "accuracy": float(plain.mean()), "more": "", "error": ""}
    }
    for epsilon in epsilons:
        baseline = None
        for counted in (1, honest):
            base = Privacy(
                noise_multiplier=1.0, max_grad_norm=1.0, delta=0.1 / largest, honest=counted
            )
            config = scenario.config.model_copy(update={"privacy": base})
            privacy = at_epsilon(replace(scenario, config=config), epsilon)
            accuracies = np.array([reached(tree, seed, privacy) for seed in range(seeds)])
            baseline = accuracies if baseline is None else baseline
            gains, spread = (
                accuracies - baseline,
                float(np.std(accuracies - baseline, ddof=min(1, seeds - 1))),
            )
            rows[f"epsilon {epsilon:g}, noise of {counted}"] = {
                "sigma": privacy.noise_multiplier,
                "accuracy": float(accuracies.mean()),
                "more": f"{gains.mean():+.3f}",
                "error": spread / seeds**0.5,
            }
    return publish(title, rows, seeds, minimum=minimum, samples=largest)


def main(size: Any, arguments: list[str]) -> list[Table]:
    """Measure all federations."""
    federations, epsilons, seeds = size
    return [compared(name, federation, epsilons, seeds) for name, federation in federations.items()]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
