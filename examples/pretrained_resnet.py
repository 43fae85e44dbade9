"""Pretrain a ResNet-18 on CIFAR-10, then start federations on CIFAR-100 from it: head, LoRA, whole
network.

    python examples/pretrained_resnet.py pretrain resnet18-cifar10.safetensors --epochs 20
    python examples/pretrained_resnet.py federate resnet18-cifar10.safetensors --rounds 10

The first command trains on all 50,000 images in one place (one client, ``separate``) and writes the
weights as safetensors; on one core an epoch takes minutes. The second prints the cost of a round
and the results for twelve clients of CIFAR-100 (``trained_parts.py``), from these weights and, with
--random, from random ones. The first pretrains another network too: ``model.name=...``. POMONA_DATA
names the folder with both data sets. Further words are settings: ``data.train_limit=300`` for a
look in a minute.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from pomona.config import merge, read_overrides, resolve
from pomona.core.toml import Tree
from pomona.scenario import Scenario
from pomona.simulation import simulate
from trained_parts import METHODS, PARTS, table

MODEL = "resnet18"


def pretrain(weights: Path, epochs: int, overrides: Tree) -> float:
    """Train on CIFAR-10, write the weights, and return the accuracy on its test images."""
    settings: Tree = {
        "method": "separate",
        "data": {"name": "cifar10"},
        "clients": 1,
        "model": {"name": MODEL},
        "rounds": epochs,
        "eval_every": epochs,
        "batch_size": 128,
        "lr": 0.05,
        "lr_schedule": "cosine",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "metric": "accuracy",
    }
    scenario = Scenario.prepare(resolve(settings, overrides))
    result = simulate(scenario)
    # what a model file lacks, as counters of batches, is the network's own
    module = scenario.module()
    module.load_state_dict(result.models[0], strict=False)
    save_file(module.state_dict(), weights)
    return float(result.summary["models"][result.summary["headline"]]["last"]["test"])


def main() -> None:
    """Pretrain or federate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pretrain", "federate"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--random", action="store_true", help="federate: from random weights, for comparison"
    )
    arguments, settings = parser.parse_known_args()
    torch.set_num_threads(1)
    overrides = read_overrides(settings)
    if arguments.what == "pretrain":
        accuracy = pretrain(arguments.weights, arguments.epochs, overrides)
        print(f"test accuracy {100 * accuracy:.1f} %, written {arguments.weights}")
        return
    initial: Tree = (
        {} if arguments.random else {"init": str(arguments.weights), "init_skip": ["fc.*"]}
    )
    data: Tree = {"data": {"name": "cifar100"}}
    merge(data, overrides)
    for line in table({"name": MODEL, **initial}, PARTS, METHODS, arguments.rounds, data):
        print(line, flush=True)


if __name__ == "__main__":
    main()
