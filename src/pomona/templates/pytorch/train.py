"""A model for each client by my method, next to FedAvg's: python train.py"""

import torch
from data import loaders
from method import Mine
from model import network, test, train

import pomona


def run(method: str | Mine) -> pomona.Result:
    """Run 20 rounds from the same initial model."""
    torch.manual_seed(7)
    return pomona.personalize(network(), loaders(), method, train=train, test=test, rounds=20)


if __name__ == "__main__":
    for method in ("separate", "fedavg", Mine()):
        result = run(method)
        print(result.name, result.score)
    torch.save(dict(zip(loaders(), result.models.values(), strict=True)), "models.pt")
