"""A tiny bench that repeats part of APPLE's table 1 on digits."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pomona.experiments import run

TINY = {
    "title": "A corner of a table",
    "paper": "apple",
    "table": "1",
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
        "one": {"setting": "pathological", "dataset": "MNIST", "partition": {"name": "dirichlet", "beta": 1.0}},
        "two": {"setting": "practical", "dataset": "MNIST", "partition": {"name": "iid"}},
        "gone": {"setting": "practical", "dataset": "PathMNIST", "data": {"name": "pathmnist", "dir": "nowhere"}},
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
    with ThreadPoolExecutor(1) as here:
        return run(TINY, tmp_path_factory.mktemp("compare") / "bench", here)
