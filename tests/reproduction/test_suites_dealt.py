"""Every partition of every suite and size can be computed from its whole data set, using class
counts alone.
"""

import numpy as np
import pytest
from class_counts import COUNTS, rows
from paper_suites import SIZES, SUITES

from pomona.config import Config
from pomona.data.dataset import Dataset
from pomona.experiments.suite import read_suite, suites
from pomona.partition import DATA_KEYS, divide, latent
from pomona.partition.partition import Partition
from representatives import representatives

pytestmark = pytest.mark.long

OF_FILES = {"flamby-heart", "flamby-tcga", "real-sites"}  # clients are files, not dealt
SUITE_FILES = [*(path for path in SUITES if path.stem not in OF_FILES), *suites().values()]
CACHE: dict[str, tuple[Partition, Dataset]] = {}


@pytest.fixture(autouse=True)
def clusters_without_images(monkeypatch):
    """Latent distributions are clusters of images, which are not available here: equal-sized groups
    replace them.
    """
    monkeypatch.setattr(
        latent, "network", lambda task, rows, epochs: np.zeros((len(rows), 1), dtype=np.float32)
    )
    monkeypatch.setattr(
        latent, "clusters", lambda vectors, components, count, seed: np.arange(len(vectors)) % count
    )


def dealt(config: Config) -> tuple[Partition, Dataset]:
    """The partition of a run, and its data; runs without a difference in these share it."""
    key_parts = (
        config.data.model_dump_json(include=DATA_KEYS | {"name"}),
        config.partition.model_dump_json(),
    )
    key = f"{key_parts} {config.clients} {config.seed}"
    if key not in CACHE:
        data = rows(config.data.name)
        CACHE[key] = divide(data, config.data, config.partition, config.clients, config.seed), data
    return CACHE[key]


def runs(file, size):
    """(scenario, config) of everything that a suite runs at a size."""
    suite = read_suite(file)
    seeds = suite.sized(size).seeds
    return [(s, suite.config(size, s, m, {}, seed)) for s, m in suite.pairs(size) for seed in seeds]


def test_the_counts_are_those_that_the_sources_print():
    totals = {name: (sum(train), sum(test)) for name, (train, test) in COUNTS.items()}
    assert totals["mnist"] == totals["fashion-mnist"] == (60_000, 10_000)
    assert totals["organamnist"] == (34_561 + 6_491, 17_778)
    assert totals["pathmnist"] == (89_996 + 10_004, 7_180)
    assert totals["emnist-byclass"] == (
        pytest.approx(697_932, abs=10),
        pytest.approx(116_323, abs=10),
    )
    assert totals["digits"][0] == 1797
    assert totals["retinamnist"] == (1_080 + 120, 400)


@pytest.mark.parametrize("size", representatives(SIZES, [SIZES[0]]))
@pytest.mark.parametrize("file", SUITE_FILES, ids=lambda p: p.stem)
def test_every_scenario_can_be_dealt(file, size):
    for scenario, config in runs(file, size):
        partition, _ = dealt(config)
        assert len(partition.clients) == config.clients, scenario
        assert all(len(c.train) for c in partition.clients), scenario


@pytest.mark.parametrize("size", SIZES)
def test_fedamps_practical_setting_has_all_classes_everywhere_and_groups_of_different_sizes(size):
    """FedAMP, section 7: "every client has data from all classes", and the numbers of samples
    differ between groups.
    """
    (file,) = [f for f in SUITES if f.stem == "fedamp-table3"]
    for scenario, config in runs(file, size):
        partition, data = dealt(config)
        class_counts = [
            np.bincount(data.y[np.union1d(c.train, c.validation)], minlength=len(data.classes))
            for c in partition.clients
        ]
        assert min(h.min() for h in class_counts) >= 1, scenario
        sizes = [
            {h.sum() for h, g in zip(class_counts, partition.groups, strict=True) if g == group}
            for group in set(partition.groups)
        ]
        assert all(len(alike) == 1 for alike in sizes), scenario
        assert len(set.union(*sizes)) == len(sizes), scenario
        for h, group in zip(class_counts, partition.groups, strict=True):
            assert h[list(config.partition.groups[group].classes)].sum() == pytest.approx(
                0.8 * h.sum(), abs=1
            )
