import json
import os
from dataclasses import replace

import numpy as np
import pytest
from partition_data import divided, images, table

from pomona.core.errors import ConfigError, DataError
from pomona.data import Owners, data_settings
from pomona.data.dataset import RowGroups
from pomona.partition import FromFile, Iid, Latent, Natural, divide
from pomona.partition.partition import Partition

DATA = table([30, 30], [10, 10])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "partition.json"
    divide(DATA, data_settings(), Iid(), 3, 0).save(path)
    return path


def test_a_saved_partition_comes_back_the_same(saved):
    partition = divide(DATA, data_settings(), Iid(), 3, 0)
    assert Partition.load(saved).sha256 == partition.sha256
    loaded = divide(DATA, data_settings(validation_share=0.5), FromFile(path=saved), 3, 99)
    assert loaded.sha256 == partition.sha256
    assert loaded.recipe == partition.recipe
    for mine, same_client in zip(partition.clients, loaded.clients, strict=True):
        for split in ("train", "validation", "test"):
            assert np.array_equal(getattr(mine, split), getattr(same_client, split))


def test_groups_and_turns_come_back(tmp_path):
    data = images(64, 4, 4)
    partition = divided(data, Latent(distributions=2, components=4, turn_groups=2), 4)
    partition.save(tmp_path / "p.json")
    loaded = divided(data, FromFile(path=tmp_path / "p.json"), 4)
    assert (loaded.groups, loaded.turns) == (partition.groups, partition.turns)
    assert loaded.sha256 == partition.sha256


def client(key, change):
    def tamper(body):
        body["clients"][1][key] = change(body["clients"][1][key], body["clients"][0][key])

    return tamper


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (
            client("train", lambda mine, rows: [*mine, 80]),
            "client 1, train: row 80 is not among the 80 rows",
        ),
        (client("test", lambda mine, rows: [-1, *mine]), "client 1, test: row -1 is not among"),
        (
            client("test", lambda mine, rows: mine[::-1]),
            "client 1, test: row numbers are not in ascending order",
        ),
        (client("train", lambda mine, rows: [mine[0], *mine]), "not in ascending order"),
        (
            client("train", lambda mine, rows: sorted([rows[0], *mine])),
            "client 1, train: row .* occurs twice",
        ),
        (client("train", lambda mine, rows: []), "client 1 has no training rows"),
        (client("train", lambda mine, rows: None), "not a partition file"),
        (client("train", lambda mine, rows: "rows"), "not a partition file"),
        (lambda body: body.pop("groups"), "not a partition file"),
        (lambda body: body.update(format="pomona-partition-0"), "pomona-partition-0"),
        (lambda body: body.update(groups=[0]), "groups has 1 entries for 3 clients"),
        (lambda body: body.update(turns=[0, 1]), "turns has 2 entries"),
        (lambda body: body.update(turns=[0, 1, 4]), "0, 1, 2 or 3 quarter turns"),
        (
            lambda body: body["recipe"].update(fingerprint="0" * 64),
            "made from other data .fingerprint 000000000000,",
        ),
        (lambda body: body["recipe"].pop("fingerprint"), "made from other data"),
    ],
)
def test_a_tampered_file_is_refused(saved, tamper, message):
    body = json.loads(saved.read_text())
    tamper(body)
    saved.write_text(json.dumps(body))
    with pytest.raises(DataError, match=message) as fault:
        divided(DATA, FromFile(path=saved), 3)
    assert str(saved) in str(fault.value)
    assert "; " in str(fault.value)  # and what to do


def test_turns_need_square_images(saved):
    body = json.loads(saved.read_text())
    body["turns"] = [0, 1, 2]
    saved.write_text(json.dumps(body))
    with pytest.raises(ConfigError, match="square images"):
        divided(DATA, FromFile(path=saved), 3)


def test_other_data_and_other_numbers_of_clients_are_refused(saved):
    with pytest.raises(DataError, match="other data"):
        divided(table([31, 29], [10, 10]), FromFile(path=saved), 3)
    with pytest.raises(
        ConfigError, match="3 clients, but the run has clients = 4; set clients = 3"
    ):
        divided(DATA, FromFile(path=saved), 4)


@pytest.mark.parametrize("owned", [False, True])
def test_a_saved_partition_that_splits_a_patient_is_refused(tmp_path, owned):
    rows = len(DATA)
    site = np.arange(rows) % 2
    owners = Owners(("a", "b"), site, np.zeros(rows, np.int8)) if owned else None
    bare = replace(DATA, owners=owners)
    # row 0's patient has one more row
    recipe = Natural() if owned else Iid()
    partition = divided(bare, recipe, 2)
    partition.save(tmp_path / "p.json")
    saved = FromFile(path=tmp_path / "p.json")
    train, test = partition.clients[0].train, partition.clients[0].test
    neighbour = partition.clients[1].test

    def patient(row, second):
        number = np.arange(rows)
        number[second] = row
        return replace(bare, groups=RowGroups("patient", number))

    valid = divided(patient(train[0], train[1]), saved, 2)
    assert valid.sha256 == partition.sha256
    with pytest.raises(DataError, match=r"1 of 79 groups of patient .* make .*p\.json again"):
        divided(patient(train[0], test[0]), saved, 2)
    if owned:  # the same identifier at another owner is another patient
        assert divided(patient(train[0], neighbour[0]), saved, 2).sha256 == partition.sha256
    else:
        with pytest.raises(DataError, match="1 of 79 groups of patient"):
            divided(patient(train[0], neighbour[0]), saved, 2)


def test_what_is_no_file(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.json is not a partition file"):
        divided(DATA, FromFile(path=tmp_path / "nothing.json"), 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ("[[1]]", "Input should be"),
        ("1" * 5000, "not JSON"),
        ("null", "Input should be"),
        ("\xff", "not JSON"),
        (
            (
                '{"format": "pomona-partition-1", "recipe": {}, "groups": [], "turns": [], '
                '"clients": '
                "[[1]]}"
            ),
            "clients.0",
        ),
        (
            (
                '{"format": "pomona-partition-1", "recipe": {}, "groups": [1e999], "turns": [], '
                '"clients": []}'
            ),
            "1e999 is not a finite number",
        ),
        (
            '{"format": "pomona-partition-1", "recipe": {}, "groups": ['
            + "9" * 400
            + '], "turns": [], "clients": []}',
            "groups.0",
        ),
    ],
)
def test_a_file_made_to_harm_is_one_line(tmp_path, text, message):
    path = tmp_path / "p.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=rf"p\.json is not a partition file .*{message}") as fault:
        Partition.load(path)
    assert len(str(fault.value)) < 500


def test_a_pipe_is_no_partition_file(tmp_path):
    os.mkfifo(tmp_path / "p.json")
    with pytest.raises(DataError, match="pipe"):
        Partition.load(tmp_path / "p.json")
