"""A silo's split is the simulator's: silos that split their own rows, of different sizes and kinds,
against ``pomona deploy simulate`` on one table of all rows. Models are equal to the bit.
"""

from dataclasses import replace

import numpy as np
import pytest
import tomli_w

from federation_in_process import equal, loaded
from own_rows import CASES, SIZES, OwnRows
from pomona.cli import main
from pomona.core.bounds import SPLITS
from pomona.core.errors import ProtocolError
from pomona.core.membership import Membership
from pomona.core.toml import read_file
from pomona.data.dataset import Dataset, Owners
from pomona_federation.agreement import Federation
from pomona_federation.provision.provision import add
from pomona_federation.rehearsal.inputs import in_order, silos_of
from pomona_federation.rehearsal.run import LocalFederation, adopt, disown, free_ports
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.silo import silo_in_study
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.silo_scenario import own_scenario
from pomona_federation.survey.raw_data import read_raw
from real_federation import finished, launched

GROUPED = CASES["csv, four classes, groups"]
LATE = "aachen"  # the first by name, the last by place


def rows_of(scenario, client, split):
    """Inputs and targets of a client's split, in order."""
    rows = getattr(scenario.partition.clients[client], split)
    return scenario.dataset.x[rows], scenario.dataset.y[rows]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 123])
@pytest.mark.parametrize("name", CASES)
def test_a_silo_splits_its_rows_as_the_simulation_splits_them(name, seed, tmp_path):
    federation = OwnRows(tmp_path, CASES[name], seed=seed)
    scenario = federation.scenario()
    assert scenario.names == list(SIZES)
    for i, silo in enumerate(federation.names):
        local_data = Silo(federation.kits / silo).local
        for split in SPLITS:
            pairs = zip(rows_of(local_data, 0, split), rows_of(scenario, i, split), strict=True)
            for ours, theirs in pairs:
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{silo}, {split}")
                assert len(ours)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_silos_that_split_their_own_rows_have_the_models_of_the_simulation(name, tmp_path):
    federation = OwnRows(tmp_path, CASES[name], seed=5)
    models = federation.run()
    assert len(models) == 3
    assert equal(models, federation.simulated())


def admitted(federation, name):
    """Make a late silo's kit, register it and connect it, as the lead and the operators do."""
    add(federation.kits, name)
    federation.describe(name)
    key = federation.server / "keys" / f"{name}.pub"
    with pytest.raises(SystemExit, match="0"):
        main(["server", "add", name, "--key", str(key), "--folder", str(federation.server)])
    federation.grid.folders[10 + federation.names.index(name)] = federation.kits / name


@pytest.mark.long
@pytest.mark.parametrize("earlier", [(), ("zwolle",)])
def test_a_late_member_splits_as_its_admission_says(earlier, tmp_path, monkeypatch):
    """It comes with round 2, after any that were admitted before. How many training rows it has,
    which it tells first, follows from its place.
    """
    sizes = {**SIZES, **dict.fromkeys(earlier, 30), LATE: 47}
    member = len(sizes) - 1
    case = replace(GROUPED, run={"rounds": 3})
    federation = OwnRows(tmp_path, case, sizes, late=(*earlier, LATE))
    for name in earlier:
        admitted(federation, name)
    round_ = ServerStatusFile.on_round_end

    def rounds(news, row, evaluations):
        round_(news, row, evaluations)
        if row.round == 1:
            admitted(federation, LATE)

    monkeypatch.setattr(ServerStatusFile, "on_round_end", rounds)
    models = federation.run()
    assert silos_of(federation.server) == tuple(sizes) == tuple(models)
    assert equal(models, federation.simulated(federation.server, Membership(joins={member: 2})))
    late = Silo(federation.kits / LATE)
    assert late.member == member
    counts = {
        len(own_scenario(late.file, late.terms, i).partition.clients[0].train) for i in range(5)
    }
    assert len(counts) > 1


def test_a_founder_has_its_place_by_name_and_a_later_member_the_one_that_is_named_first(tmp_path):
    federation = Federation.from_tree({"name": "try", "server": "127.0.0.1:9", "silo": FOUNDERS})

    def member_id(name):
        return silo_in_study.member_id(tmp_path, federation, name)

    (tmp_path / "state").mkdir()
    assert [member_id(silo["name"]) for silo in FOUNDERS] == [0, 1]
    assert silo_in_study.known_id(tmp_path, federation, LATE) is None
    assert member_id(LATE) == 2
    assert "until the server" in silo_in_study.described_id(tmp_path, federation, LATE)
    silo_in_study.note_id(tmp_path, federation, LATE, 4)
    silo_in_study.note_id(tmp_path, federation, LATE, 4)
    assert member_id(LATE) == 4
    for name, other_place in ((LATE, 3), ("west", 1)):
        with pytest.raises(ProtocolError, match=f"place {other_place} for this silo, {name}"):
            silo_in_study.note_id(tmp_path, federation, name, other_place)
    assert "federation.toml" in silo_in_study.described_id(tmp_path, federation, "west")
    assert "admitted" in silo_in_study.described_id(tmp_path, federation, LATE)


FOUNDERS = [{"name": "west"}, {"name": "east"}]


def test_a_survey_counts_the_rows_that_a_study_trains_on(tmp_path):
    federation = OwnRows(tmp_path, GROUPED)
    for member, name in enumerate(federation.names):
        silo = Silo(federation.kits / name)
        surveyed = read_raw(silo.file.data, silo.terms.config.seed, member)
        np.testing.assert_array_equal(surveyed.rows, silo.local.partition.clients[0].train)


def owned(*names):
    """Data with a row of each of these clients."""
    owners = Owners(names, np.arange(len(names)), np.zeros(len(names), np.int8))
    x, y = np.zeros((len(names), 1), np.float32), np.arange(len(names)) % 2
    return Dataset("d", "table", x, y, ("a", "b"), len(names), owners=owners)


@pytest.mark.parametrize(
    ("clients", "silos", "ordered", "note"),
    [
        ("abc", "cab", "cab", ""),
        ("abc", "cabde", "cab", ""),
        ("abcz", "cb", "cbaz", ""),
        ("abc", "cdab", "cab", "no rows of silo d"),
        ("abc", "", "abc", "--members"),
        ("a", "", "a", ""),
    ],
)
def test_clients_of_a_table_are_numbered_as_silos_are(clients, silos, ordered, note):
    unordered, data = owned(*clients), in_order(owned(*clients), list(silos))
    assert "".join(data.owners.names) == ordered
    names = [[d.owners.names[i] for i in d.owners.client] for d in (unordered, data)]
    assert names[0] == names[1]
    assert (note in data.notes[0]) if note else not data.notes


@pytest.mark.long
def test_what_is_applied_to_all_rows_of_a_table_is_said(tmp_path):
    federation = OwnRows(tmp_path, CASES["csv, two classes"])
    (remark,) = federation.scenario(train_limit=50, duplicates="keep").remarks
    assert remark.startswith("data.train_limit")
    lines = federation.scenario(test_limit=20, duplicates="drop").remarks
    assert [line.split()[0] for line in lines] == ["data.test_limit", "data.duplicates"]


@pytest.mark.long
def test_the_command_simulates_a_study_as_its_federation_runs_it(tmp_path, capsys):
    """By the federation's file, and by the study's with the federation named."""
    federation = OwnRows(tmp_path, CASES["csv, two classes"])
    tree = read_file(federation.toml)
    study = tmp_path / "second.toml"
    study.write_text(tomli_w.dumps({"name": "second", "run": tree["run"], "task": tree["task"]}))
    models = federation.run()
    data = {**federation.section(federation.pooled, client_column="silo")}
    settings = [f"data.{key}={value}" for key, value in data.items()]
    for number, files in enumerate(([federation.toml], [study, "--members", federation.toml])):
        folder = tmp_path / f"out {number}"
        with pytest.raises(SystemExit, match="0"):
            main(["deploy", "simulate", *map(str, files), *settings, "--out", str(folder)])
        paths = {n: folder / "models" / f"client-{i:02d}.safetensors" for i, n in enumerate(SIZES)}
        assert equal(models, loaded(paths))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["csv, four classes, groups", "parquet, two classes, groups and times", "images in folders"],
)
def test_real_silos_that_split_their_own_rows_have_the_models_of_the_simulation(name, tmp_path):
    port = free_ports(1)[0]
    federation = OwnRows(
        tmp_path,
        CASES[name],
        seed=2,
        server=f"127.0.0.1:{port}",
        deadline=240.0,
        wait=240.0,
        quorum=3,
    )
    local = LocalFederation(tmp_path, tuple(SIZES), federation.scenario())
    adopt()
    try:
        assert launched(local).wait(finished).state == "finished"
    finally:
        local.close()
        disown()
    assert equal(federation.models(), federation.simulated())
