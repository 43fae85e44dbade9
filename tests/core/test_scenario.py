"""A scenario is ready, checked and leak-free before any training."""

import numpy as np
import pytest
import torch

from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.models.parameter_space import ParameterSpace
from pomona.scenario import Scenario
from problems import tiny


def test_tables_are_standardised_by_training_rows_alone():
    scenario = Scenario.prepare(resolve({"data": {"name": "breast-cancer"}, "clients": 3}))
    rows = np.concatenate([c.train for c in scenario.partition.clients])
    x = (scenario.dataset.x[rows] - scenario.dataset.shift) / scenario.dataset.scale
    assert np.allclose(x.mean(0), 0, atol=1e-4)
    assert np.allclose(x.std(0), 1, atol=1e-4)
    assert not np.allclose(scenario.dataset.x.mean(0), scenario.dataset.shift, rtol=1e-6)


def test_texts_know_the_words_of_training_rows_alone(tmp_path):
    """Each of 60 texts has a word of its own, so that each row outside training has an unknown
    word.
    """
    rows = [f"{k % 2},common word{k}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["y,text", *rows]) + "\n")
    data = {
        "name": "text",
        "path": str(tmp_path / "t.csv"),
        "label_column": "y",
        "text_columns": ["text"],
    }
    scenario = Scenario.prepare(
        resolve(
            {"data": {**data, "sequence_length": 3}, "clients": 3, "model": {"name": "fasttext"}}
        )
    )
    train = np.concatenate([c.train for c in scenario.partition.clients])
    untrained = np.setdiff1d(np.arange(60), train)
    assert len(untrained)
    assert set(scenario.dataset.words) == {"common", *(f"word{k}" for k in train)}
    assert scenario.dataset.vocabulary == len(train) + 3
    # the most frequent word, an unknown one, padding
    assert (scenario.dataset.x[untrained] == [2, 1, 0]).all()
    assert (scenario.dataset.x[train] != 1).all()


def test_each_asker_gets_the_common_initial_row_in_memory_of_its_own():
    scenario = Scenario.prepare(tiny("fedavg"))
    first = scenario.initial()
    packed = ParameterSpace(scenario.module()).pack(scenario.module())
    assert torch.equal(first, packed)
    first.zero_()
    assert torch.equal(scenario.initial(), packed)


def test_initial_models_follow_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    random_state = torch.random.get_rng_state()
    first, second = (Scenario.prepare(tiny("fedavg", seed=s)).initial for s in (0, 1))
    assert torch.equal(first(), first())
    assert not torch.equal(first(), second())
    assert not torch.equal(first(0), first(1))
    assert torch.equal(first(1), first(1))
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_clients_are_counted_where_the_data_names_them(tmp_path):
    table = ["a,b,y,site"] + [f"{k},{k % 7},{k % 2},{'XYZ'[k % 3]}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(table))
    data = {
        "name": "table",
        "path": str(tmp_path / "t.csv"),
        "label_column": "y",
        "client_column": "site",
    }
    scenario = Scenario.prepare(
        resolve({"data": data, "partition": {"name": "natural"}, "model": {"name": "logistic"}})
    )
    assert scenario.config.clients == 3
    assert scenario.names == ["X", "Y", "Z"]


def test_batchnorm_with_one_sample_is_refused_by_layer_and_client(tmp_path):
    files = []
    for name, n in (("many", 9), ("lone", 1)):
        images = np.zeros((n, 8, 8), dtype=np.uint8)
        for split in ("train", "test"):
            np.savez(tmp_path / f"{name}-{split}.npz", x=images, y=np.arange(n) % 3)
        files.append(
            {
                "name": name,
                **{split: str(tmp_path / f"{name}-{split}.npz") for split in ("train", "test")},
            }
        )
    config = tiny(
        "fedavg",
        model={"name": "resnet18"},
        data={"name": "arrays", "clients": files, "validation_share": 0.0, "resize": 32},
        partition={"name": "natural"},
        clients=2,
    )
    with pytest.raises(DataError, match=r"lone: one training sample.*resnet18"):
        Scenario.prepare(config)
