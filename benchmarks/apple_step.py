"""One APPLE step against that of published code, which runs all N core models forward in every
step.

    python benchmarks/apple_step.py [--quick] [key=value ...]

LeNet 20-50-500, batch 256, 12 clients, momentum 0.9, images of noise, one thread. Both get the
batch's images from their own resident data, and take the same step (the first losses are compared).
Seconds are processor seconds. ``engine=torch`` or ``precision=fp32`` measures only that; by default
the native engine, if installed, and bf16, if the processor supports it, take turns too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pomona.config import read_overrides, resolve
from pomona.core.round import Roster
from pomona.core.toml import Tree
from pomona.federation.round_plan import round_of
from pomona.federation.run_checks import bf16_instructions
from pomona.methods.base import Rows
from pomona.methods.mixtures.apple import APPLE
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from reference import AppleClient, Cnn, Mixture
from rounds import noise, scenario_of
from timing import Table, Times, chosen, cpu_seconds, engines_here

SETTINGS: Tree = {
    "clients": 12,
    "batch_size": 256,
    "momentum": 0.9,
    "lr": 0.01,
    "model": {"name": "lenet"},
    "method": {"name": "apple", "dr_lr": 0.001, "mu": 0.01},
    "data": {"name": "rounds:noise", "validation_share": 0.0},
    "partition": {"name": "iid"},
}


@dataclass(frozen=True)
class Size:
    """Steps per call, to share a round's one-time work as in a round, and turns."""

    steps: int
    turns: int


FULL, QUICK = Size(8, 9), Size(1, 1)


class PomonaSteps:
    """Steps of client 0 as in a round."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        assert isinstance(config.method, APPLE)
        self.client = config.method.method().client
        self.roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
        self.round = round_of(config, 1)
        self.objective = scenario.objective()
        self.state = self.client.start(scenario.initial, self.roster, (0,), config.seed)
        core_ids = torch.arange(1, config.clients).unsqueeze(0)
        self.received = {"cores": Rows(scenario.initial().repeat(config.clients, 1), core_ids)}

    def run(self) -> float:
        """Run one pass over its images. Returns the steps' mean loss."""
        training = LocalTraining(self.objective, (0,), self.roster, self.round)
        self.state, _, _ = self.client.train(self.state, self.received, training, self.round)
        (loss,) = training.training_losses()
        return loss or 0.0


class ReferenceSteps:
    """The same steps with N models forward; the batch's images as floats."""

    def __init__(self, scenario: Scenario) -> None:
        config, objective = scenario.config, scenario.objective()
        parameters = objective.space.unpack(scenario.initial())
        cores = []
        for _ in range(config.clients):
            cores.append(Cnn(20, 50, 500))
            state_dict = dict(
                zip((k for k, _ in cores[-1].named_parameters()), parameters.values(), strict=True)
            )
            cores[-1].load_state_dict(state_dict)
        shares = torch.tensor(
            [len(c.train) for c in scenario.partition.clients], dtype=torch.float32
        )
        mixture = Mixture(cores, 0, shares / shares.sum())
        self.client = AppleClient(
            mixture, config.lr, config.method.dr_lr, config.momentum, config.method.mu
        )
        x, y = objective.data.gather(objective.data.rows["train"][0])
        self.batches = list(
            zip(x.contiguous().split(config.batch_size), y.split(config.batch_size), strict=True)
        )

    def run(self) -> float:
        """Run one pass over its images. Returns the steps' mean loss."""
        return sum(self.client.step(x, y) for x, y in self.batches) / len(self.batches)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    overrides = read_overrides(arguments)
    supported = ["fp32", "bf16"] if bf16_instructions() else ["fp32"]
    precisions = [overrides.pop("precision")] if "precision" in overrides else supported
    engines = [overrides.pop("engine")] if "engine" in overrides else engines_here()
    configs = {
        f"{p}, {e}": resolve(SETTINGS, {"precision": p, "engine": e}, overrides)
        for p in precisions
        for e in engines
    }
    c = next(iter(configs.values()))
    images = noise(c.clients * size.steps * c.batch_size * 5 // 4)
    scenarios = {p: scenario_of(config, images) for p, config in configs.items()}
    runs = {
        "reference": ReferenceSteps(next(iter(scenarios.values()))),
        **{f"pomona {p}": PomonaSteps(s) for p, s in scenarios.items()},
    }
    first = {name: round(run.run(), 5) for name, run in runs.items()}
    times = Times.interleaved(
        {name: partial(_a_step, run.run, size.steps) for name, run in runs.items()}, size.turns
    )
    notes = {
        "model": c.model.name,
        "batch": c.batch_size,
        "clients": c.clients,
        "threads": 1,
        "first_losses": first,
    }
    return [times.report("A step of APPLE", **notes)]


def _a_step(run: Callable[[], object], steps: int) -> float:
    return cpu_seconds(run) / steps


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
