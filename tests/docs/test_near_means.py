"""The guide's example of a method with class means: its size, and FedAvg where nothing pulls."""

import importlib.util
from pathlib import Path

import torch

from pomona.methods.one_model.fedavg import FedAvg
from pomona.testing import Federation, class_points
from problems import a_round

EXAMPLE = Path(__file__).parents[2] / "examples/near_means.py"
SPEC = importlib.util.spec_from_file_location("near_means_example", EXAMPLE)
EXAMPLE_MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE_MODULE)


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 80


def test_without_a_pull_it_is_fedavg_and_with_one_features_come_near_the_means():
    problem, distances = class_points(6, 3, 4), []
    averaged = Federation(FedAvg().method(), problem)
    for pull in (0.0, 2.0, 10.0):
        run = Federation(EXAMPLE_MODULE.NearMeans(pull=pull).method(), problem)
        for number in range(1, 15):
            run.round(a_round(number, epochs=5, lr=0.02))
            if not pull:
                averaged.round(a_round(number, epochs=5, lr=0.02))
                assert torch.equal(run.server.model, averaged.server)
        z, y = problem.features(run.server.model, 0, "train"), problem.y[problem.rows[0]]
        distances.append(float((z - run.server.means.means[y]).square().mean()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.8 * distances[0]
