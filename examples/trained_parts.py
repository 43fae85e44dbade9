"""Cost and benefit of training part of a pretrained network: methods times parts.

    python examples/trained_parts.py --model efficientnet-lite0 \
        --init pretrained/efficientnet-lite0.safetensors --data cifar100 \
        --rounds 8 data.train_limit=3000 data.test_limit=1200 data.resize=64

Twelve clients, Dirichlet(0.3), one process, one thread, seed 0. "row": trained parameters; "MB
down, up": all clients in the last round; "CPU s" and "s": median of a round, in this process's
time, which other work on the machine hardly changes, and in wall time; for rounds without
evaluation (all but the first and the last), and without "CPU s features", which are spent once.
The accuracy is that of the model that the method's paper reports, on the clients' test samples
after the last round, averaged over clients. Further words are settings of all runs.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time

import torch

from pomona import Evaluation, RoundRow
from pomona.config import merge, read_overrides, resolve
from pomona.core.toml import Tree
from pomona.data import Dataset, read
from pomona.federation.callbacks import NullCallback
from pomona.scenario import Scenario
from pomona.simulation import simulate

METHODS = ("fedavg", "fedrep", "apple", "fedala")
PARTS = ("head", "LoRA", "all")


@dataclass(frozen=True)
class Part:
    """A trained part of the network, and its learning rate."""

    train: str | Tree
    lr: float


@dataclass(frozen=True)
class Network:
    """A network's classifier, which starts at random, and layers with low-rank changes; globs."""

    classifier: str
    changed: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Part]:
        """The compared parts."""
        lora = {"lora": {"rank": 4, "on": list(self.changed)}}
        return {"head": Part("head", 0.03), "LoRA": Part(lora, 0.02), "all": Part("all", 0.01)}


NETWORKS = {
    "efficientnet-lite0": Network(
        "_fc.*", ("_blocks.1[345]._expand_conv", "_blocks.1[345]._project_conv", "_conv_head")
    ),
    "resnet18": Network("fc.*", ("layer4.1.residual.conv?",)),
}


@dataclass
class Watch(NullCallback):
    """Seconds of each round (CPU time and wall time), and whether models were evaluated in it."""

    start_time: float = 0.0
    rounds: list[tuple[float, float, bool]] = field(default_factory=list)

    def on_run_begin(self) -> None:
        """Called before the first client state is made."""
        self.start_time = process_time()

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after a round and its evaluation."""
        seconds = process_time()
        self.rounds.append((seconds - self.start_time, row.seconds, bool(evaluations)))
        self.start_time = seconds

    def medians(self) -> list[str]:
        """Median CPU and wall seconds of rounds without evaluation; of all if every one has it."""
        plain = [row for row in self.rounds if not row[-1]] or self.rounds
        return [f"{median(row[k] for row in plain):.2f}" for k in (0, 1)]


def rows(
    dataset: Dataset, model: Tree, part: Part, methods: Sequence[str], rounds: int, overrides: Tree
) -> Iterator[list[str]]:
    """The cells of one federation's row, by method; all share the frozen part's outputs."""
    features = None
    seconds = "-"
    for method in methods:
        settings: Tree = {
            "method": method,
            "model": {**model, "train": part.train},
            "partition": {"name": "dirichlet", "beta": 0.3},
            "clients": 12,
            "rounds": rounds,
            "eval_every": rounds,
            "lr": part.lr,
            "momentum": 0.9,
            "metric": "accuracy",
            "workers": 1,
        }
        scenario = Scenario.prepare(resolve(settings, overrides), lambda _: dataset)
        if features is None:
            start_time = process_time()
            features = scenario.resident
            seconds = (
                f"{process_time() - start_time:.0f}" if scenario.network.keeps_features else "-"
            )
        vars(scenario)["resident"] = features
        watch = Watch()
        result = simulate(scenario, callback=watch)
        last = result.rounds[-1]
        accuracy = result.summary["models"][result.summary["headline"]]["last"]["test"]
        yield [
            method,
            f"{len(scenario.initial()):,}",
            f"{sum(last.bytes_down) / 1e6:.3g}, {sum(last.bytes_up) / 1e6:.3g}",
            seconds,
            *watch.medians(),
            str(rounds),
            f"{100 * accuracy:.1f}",
        ]


def table(
    model: Tree, parts: Sequence[str], methods: Sequence[str], rounds: int, overrides: Tree
) -> Iterator[str]:
    """The table's lines, in Markdown."""
    yield (
        "| trained | method | row | MB down, up | CPU s features | CPU s | s | rounds | test "
        "accuracy, % |"
    )
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    dataset = read(resolve(overrides).data)
    for name in parts:
        for cells in rows(
            dataset, model, NETWORKS[model["name"]].parts[name], methods, rounds, overrides
        ):
            yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=NETWORKS, required=True)
    parser.add_argument(
        "--init", type=Path, required=True, help="safetensors file of the network's weights"
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument(
        "settings", nargs="*", help="key=value, before the options that take several words"
    )
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    model: Tree = {
        "name": arguments.model,
        "init": str(arguments.init),
        "init_skip": [NETWORKS[arguments.model].classifier],
    }
    overrides: Tree = {"data": {"name": arguments.data}}
    merge(overrides, read_overrides(arguments.settings))
    for line in table(model, arguments.parts, arguments.methods, arguments.rounds, overrides):
        print(line, flush=True)


if __name__ == "__main__":
    main()
