"""A tiny bench that repeats part of a table of MNIST on digits."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pomona.experiments import run

REFERENCE = {
    "title": "table 1 of a paper",
    "source": "Somebody, Somewhere 2022",
    "label": "paper",
    "average": "best_test",
    "settings": {"clients": 12, "rounds": 160, "model": {"name": "lenet"}},
    "scenario": {
        "MNIST, pathological": {
            "settings": {"data": {"name": "mnist"}},
            "numbers": {
                "Separate": 97.34,
                "FedAvg": 95.71,
                "APPLE, mu!=0": {"value": 99.77, "note": "read off"},
            },
        },
        "MNIST, practical": {
            "settings": {"data": {"name": "mnist"}},
            "numbers": {"Separate": 78.2, "FedAvg": 87.17, "APPLE, mu!=0": 98.97},
        },
        "PathMNIST, practical": {
            "settings": {"data": {"name": "pathmnist"}},
            "numbers": {"Separate": 61.36, "FedAvg": 53.83, "APPLE, mu!=0": 86.39},
        },
    },
}
TINY = {
    "title": "A corner of a table",
    "reference": REFERENCE,
    "own": ["apple"],
    "seeds": [0, 1],
    "base": {
        "data": {"name": "digits", "train_limit": 300, "test_limit": 150},
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 3,
        "rounds": 3,
        "batch_size": 16,
        "lr": 0.3,
    },
    "scenario": {
        "one": {"title": "MNIST, pathological", "partition": {"name": "dirichlet", "beta": 1.0}},
        "two": {"title": "MNIST, practical", "partition": {"name": "iid"}},
        "gone": {"title": "PathMNIST, practical", "data": {"name": "pathmnist", "dir": "nowhere"}},
    },
    "method": {
        "separate": {"row": "Separate"},
        "fedavg": {"row": "FedAvg"},
        "apple": {"row": "APPLE, mu!=0", "method": {"mu": 0.01, "dr_lr": 0.01}},
    },
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Results of the bench, run once in this process."""
    with ThreadPoolExecutor(1) as executor:
        return run(TINY, tmp_path_factory.mktemp("compare") / "bench", executor)
