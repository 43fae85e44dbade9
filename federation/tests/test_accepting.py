"""What a silo's check of a study refuses, neither its administrator nor a rule accepts."""

import tomllib

import numpy as np
import pytest

from command_line import command
from pomona_federation.silo import preflight
from test_consent_policy import entry, ruled, submitted
from test_hostile_server import edited
from test_studies import proposals

pytestmark = pytest.mark.long


def changed_rows(kit, change):
    """Change the arrays of a silo's training file."""
    [client] = tomllib.loads((kit / "silo.toml").read_text())["data"]["clients"]
    path = kit / client["train"]
    with np.load(path) as arrays:
        rows = {name: change(array) for name, array in arrays.items()}
    np.savez(path, **rows)


def removed(kit):
    edited(kit / "silo.toml", data={"clients": [{"name": kit.name, "train": "absent.npz"}]})


def emptied(kit):
    changed_rows(kit, lambda array: array[:0])


def enlarged(kit):
    changed_rows(kit, lambda array: array * 1e30 if array.ndim > 1 else array)


@pytest.mark.parametrize("damage", [removed, emptied, enlarged])
def test_neither_a_person_nor_a_rule_accepts_what_the_check_refuses(world, capsys, damage):
    federation = world.federation("fedavg")
    kit = federation.kits / "silo-0"
    submitted(federation)
    damage(kit)
    ruled(federation)
    proposals(federation, "silo-0")
    lines, _, _ = preflight.run(kit, "second")
    [line] = [line for line in lines if line.check == "data"]
    assert line.result == "failed"
    assert entry(federation).status == "pending"
    assert line.text in entry(federation).why
    assert command("silo", "accept", "second", "--folder", kit) == line.code
    assert line.text in capsys.readouterr().err
    assert entry(federation).status == "pending"
