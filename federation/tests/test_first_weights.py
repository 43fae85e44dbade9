"""A federation starting from a weights file: in every kit, by hash in the agreement; other weights
are refused.
"""

import tomllib

import pytest
import tomli_w
from safetensors.torch import load_file, save_file

from federation_in_process import deployed, equal
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.models.weights import read
from pomona.personal import PersonalModel
from pomona_federation.agreement import Federation
from pomona_federation.silo import preflight

pytestmark = pytest.mark.long


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "first.safetensors"
    save_file(build(ModelSettings(name="small"), (1, 8, 8), 10, seed=99).state_dict(), path)
    return path


@pytest.fixture
def federation(world, weights):
    return world.federation(
        {"name": "fedavg"}, run={"model": {"name": "small", "init": weights, "train": "head"}}
    )


def edited(federation, folder, **model):
    """A kit's agreement with other settings of its model."""
    tree = tomllib.loads((federation.server / "federation.toml").read_text())
    tree["run"]["model"] |= model
    folder.mkdir()
    (folder / "federation.toml").write_text(tomli_w.dumps(tree))
    return folder / "federation.toml"


def test_every_kit_has_the_weights_and_their_hash(federation, weights):
    for name in ("server", *federation.names):
        kit = federation.kits / name
        model = tomllib.loads((kit / "federation.toml").read_text())["run"]["model"]
        assert (model["init"], model["init_sha256"]) == (
            "weights.safetensors",
            read(weights).sha256,
        )
        assert (kit / "weights.safetensors").read_bytes() == weights.read_bytes()
        assert (
            Federation.load(kit / "federation.toml").agreement
            == Federation.load(federation.toml).agreement
        )


def test_models_are_those_of_the_simulation_and_answer_with_the_frozen_part_beside(
    world, federation, weights
):
    weights.rename(renamed := weights.with_name("elsewhere.safetensors"))  # kits stand on their own
    federation.run()
    ours = deployed(federation)
    renamed.rename(weights)
    assert equal(ours, world.simulated(federation))
    assert all(model.keys() == {"fc2.weight", "fc2.bias"} for model in ours.values())
    model = federation.kits / "silo-0" / "state" / "models" / "personal.safetensors"
    initial = load_file(weights)
    answering = PersonalModel.load(model).module.state_dict()
    assert all(answering[k].equal(v) for k, v in initial.items() if not k.startswith("fc2"))


def test_the_agreement_is_on_what_the_weights_are_not_on_where_they_lie(
    federation, weights, tmp_path
):
    agreement = Federation.load(federation.server / "federation.toml").agreement
    (tmp_path / "there").mkdir()
    moved_file = edited(federation, tmp_path / "there" / "deep", init="../own.safetensors")
    weights.rename(tmp_path / "there" / "own.safetensors")
    assert Federation.load(moved_file).agreement == agreement
    save_file(
        {k: v + 1 for k, v in load_file(tmp_path / "there" / "own.safetensors").items()}, weights
    )
    changed = edited(
        federation, tmp_path / "else", init=str(weights), init_sha256=read(weights).sha256
    )
    assert Federation.load(changed).agreement != agreement


def test_other_weights_or_none_are_refused_by_name(federation):
    kit = federation.kits / "silo-1"
    path = kit / "weights.safetensors"
    tensors = load_file(path)
    path.unlink()
    (line,) = [line for line in preflight.run(kit)[0] if line.check == "agreement"]
    assert line.result == "failed"
    assert "weights.safetensors" in line.text
    save_file({k: v + 1 for k, v in tensors.items()}, path)
    (line,) = [line for line in preflight.run(kit)[0] if line.check == "agreement"]
    assert "contains other weights: their hash is" in line.text
    assert "\n" not in line.text
    with pytest.raises(ConfigError, match="contains other weights"):
        Federation.load(kit / "federation.toml")
