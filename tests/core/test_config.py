"""Settings: precedence, typos, files, and the same again from what was written."""

import json

import pytest

from pomona.config import Config, keys, read_overrides, resolve
from pomona.errors import ConfigError, near
from pomona.toml import read_file


def test_later_layers_win():
    file = {"rounds": 7, "lr": 0.5, "method": {"name": "apple", "mu": 0.1}}
    config = resolve(file, read_overrides(["rounds=9", "method.mu=0.3"]))
    assert (config.rounds, config.lr, config.method.mu) == (9, 0.5, 0.3)
    assert config.batch_size == Config().batch_size


def test_another_method_drops_the_settings_of_the_one_before():
    config = resolve({"method": {"name": "apple", "dr_lr": 0.1}}, {"method": {"name": "fedprox", "mu": 2}})
    assert config.method.model_dump() == {"name": "fedprox", "mu": 2.0}


def test_values_are_toml_else_text():
    assert read_overrides(["a=1", "b.c=1e-3", "b.d=true", "e=mnist", 'f="7"', "g=[1, 2]", "local-epochs=2"]) == {
        "a": 1,
        "b": {"c": 1e-3, "d": True},
        "e": "mnist",
        "f": "7",
        "g": [1, 2],
        "local_epochs": 2,
    }


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"rouns": 3}, ["'rouns'", "rounds"]),
        ({"method": {"name": "apple", "lamda": 3}}, ["'method.lamda'"]),
        ({"method": {"name": "apple", "drlr": 3}}, ["'method.drlr'", "method.dr_lr"]),
        ({"mu": 1, "method": {"name": "apple"}}, ["'mu'", "method.mu"]),
        ({"data": {"nam": "mnist"}}, ["'data.nam'", "data.name"]),
        ({"partition": {"name": "dirichlet", "betas": 1}}, ["partition.betas", "partition.beta"]),
        ({"method": {"name": "aple"}}, ["method 'aple'", "apple"]),
        ({"partition": {"name": "dirichlett"}}, ["dirichlet"]),
        ({"rounds": 0}, ["rounds = 0", "greater than or equal to 1"]),
        ({"rounds": "many"}, ["rounds = 'many'", "integer"]),
        ({"lr": float("nan")}, ["lr", "finite"]),
        ({"method": {"name": "apple", "schedule": "linear"}}, ["method.schedule", "cosine"]),
        ({"method": {"mu": 1}}, ["method.name must be set", "apple"]),
        ({"rounds": 0, "batch_size": 0}, ["rounds", "batch_size"]),
    ],
)
def test_a_mistake_names_the_key_its_path_and_near_names(tree, words):
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_written_runs_the_same_again(tmp_path):
    config = resolve({"method": {"name": "apple", "budget": 3}, "partition": {"name": "dirichlet", "beta": 0.2}})
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert resolve(read_file(path)) == config


def test_a_file_with_a_mistake_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml.*line 1"):
        read_file(path)
    with pytest.raises(ConfigError, match="absent"):
        read_file(tmp_path / "absent.toml")


def test_a_word_that_is_neither_file_nor_setting_is_refused():
    with pytest.raises(ConfigError, match="key=value"):
        read_overrides(["rounds"])


def test_known_keys_hold_sections_and_the_chosen_methods_own():
    known = keys({"method": {"name": "apple"}})
    assert {"rounds", "data.name", "method.dr_lr", "model.name", "partition.beta"} <= set(known)
    assert "method.finetune_epochs" not in known


def test_settings_are_plain_json():
    assert json.loads(json.dumps(Config().tree()))["method"] == {"name": "fedavg"}


def test_near_names_fall_back_to_all():
    assert near("zzz", ["b", "a"]) == "known: a, b"
    assert "apple" in near("aple", ["apple", "fedavg"])


def test_a_key_that_is_no_name_in_python_is_written_as_in_the_paper():
    config = resolve({"method": {"name": "fedamp"}}, read_overrides(["method.lambda=0.5"]))
    assert config.method.lambda_ == config.tree()["method"]["lambda"] == 0.5
    assert "method.lambda" in keys({"method": {"name": "fedamp"}})
    with pytest.raises(ConfigError, match=r"method\.lambda\b"):
        resolve({"method": {"name": "fedamp", "lamda": 1}})
