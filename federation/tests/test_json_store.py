"""JSON files of silo and server, damaged in every field: a one-line error that names the file, and
no fresh start.
"""

import json

import pytest

from pomona.core.errors import ConfigError, StorageError
from pomona_federation import keys
from pomona_federation.json_store import seal
from pomona_federation.keys import Signer, signed
from pomona_federation.server.server_app import coordinate
from pomona_federation.silo.silo_report import LOCAL_SCORES, report
from pomona_federation.silo.task_policy import LastTasks, PinnedAgreement
from test_hostile_server import Server, noise
from test_preflight import checks, kit

pytestmark = pytest.mark.long

INVALID_VALUES = [[], "x", -1, 1e999, 10**400, [[]], {"a": 1}]


@pytest.fixture
def server(world):
    """A server whose silo has answered a round."""
    hostile_server = Server(world.federation("fedavg", run={"rounds": 3}, places=7))
    hostile_server.ask(*hostile_server.task(1))
    return hostile_server


@pytest.mark.parametrize("name", ["asked", "seen", "agreement"])
def test_a_memory_with_one_field_of_another_kind_is_named(name, server):
    path = server.kit() / "state" / f"{name}.json"
    text = path.read_text()
    record = json.loads(text)["content"]
    for field in record:
        for value in INVALID_VALUES:
            if (name, field, value) in (("seen", "rounds", {"a": 1}), ("asked", "left", [])):
                continue  # a silo called a, last seen in round 1; no earlier run
            content = {**record, field: value}
            own_seal = seal("file", json.dumps([path.name, content], sort_keys=True))
            path.write_text(json.dumps({"content": content, "seal": own_seal}))
            with pytest.raises(StorageError, match=rf"{name}\.json cannot be read"):
                server.ask(*server.task(2))
    path.write_text(text)
    assert server.ask(*server.task(2))[1]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"[" * 100_000, b'{"question": "x", "answer": {}}', b"\xff"]
)
def test_an_answer_to_an_evaluation_that_is_damaged_is_named(text, server):
    request = server.task(2, trains=False, settled=1)
    first = server.ask(*request)
    path = server.kit() / "state" / "checkpoints" / "evaluation.json"
    content = path.read_bytes()
    path.write_bytes(text)
    with pytest.raises(StorageError, match=r"evaluation\.json cannot be read"):
        server.ask(*request)
    path.write_bytes(content)
    assert server.ask(*request) == first


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run": 7}', '{"run": "../x"}', "[" * 100_000])
def test_a_run_id_that_is_damaged_is_named_by_the_server(text, world):
    federation = world.federation(run={"rounds": 1})
    (federation.server / "run").mkdir(exist_ok=True)
    (federation.server / "run" / "run.json").write_text(text)
    with pytest.raises(StorageError, match=r"run\.json cannot be read"):
        coordinate(federation.server, None)


def test_records_of_memories_say_what_they_always_said():
    """Files of before this version are read: these are their keys."""
    assert LastTasks.model_validate_json(
        '{"run": "ab", "training": [2, "%s"]}' % ("a" * 64)
    ).training == (2, "a" * 64)
    assert PinnedAgreement.model_validate_json('{"agreement": "%s"}' % ("a" * 64)).place is None


def test_a_silos_check_names_a_damaged_agreement(tmp_path):
    folder, _ = kit(tmp_path)
    (folder / "state").mkdir()
    (folder / "state" / "agreement.json").write_text('{"agreement": 7}')
    line = checks(folder)[0]["agreement"]
    assert (line.result, line.code) == ("failed", StorageError.code)


@pytest.mark.parametrize(
    "text", ["[]", '{"key": 1}', '{"key": "KEY", "alone": {"round": 1, "value": [[]]}}']
)
def test_what_training_alone_reached_is_computed_again_where_its_file_is_none(text, server):
    first = report(server.kit())
    path = server.kit() / "state" / "node" / LOCAL_SCORES
    path.write_text(text.replace("KEY", json.loads(path.read_text())["key"]))
    assert report(server.kit()) == first


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"ecdsa-sha2-nistp999 AAAA", b""])
def test_a_peers_key_that_is_none_is_one_line(damage, world):
    """Silo-0's key is needed for its signed row: the file is named, and what it holds is no
    traceback.
    """
    relay = Server(world.federation({"name": "apple"}, run={"rounds": 3}, places=7))
    row = noise(1)
    task, rows = relay.cores(
        {0: row}, {0: relay.signed("silo-0", row, 1)}, index=(0, 1), number=2, settled=0
    )
    (relay.kit() / "keys" / "peers" / "silo-0.pub").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"silo-0\.pub"):
        relay.ask(task, rows)


def test_an_own_key_of_no_known_kind_is_one_line(tmp_path):
    """One letter of the base64 text is another one: the type of the key is unknown to the
    library.
    """
    key = keys.silo()
    lines = key.private.splitlines()
    lines[2] = lines[2].replace(lines[2][4:8], b"AAAA", 1)
    (tmp_path / "silo.key").write_bytes(b"\n".join(lines))
    with pytest.raises(ConfigError, match=r"silo\.key"):
        Signer(tmp_path / "silo.key")
    assert not signed("ecdsa-sha2-nistp999 AAAA", "answer", {}, "00")
