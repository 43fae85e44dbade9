"""What the server is told of a fault at a silo: nothing of its data, its settings and its files."""

import sys

import pytest
from flwr.app import Context, RecordDict

from pomona.core.errors import ConfigError, DataError, ProtocolError, StorageError
from pomona.deploy import audit
from pomona.deploy.flower_apps import client_app
from pomona.deploy.messages.message_pieces import unpacked
from pomona.deploy.silo import own_kit
from pomona.deploy.silo.privacy.outgoing_filter import scrubbed

SECRET = "Weber"


@pytest.mark.parametrize("kind", [DataError, ConfigError, StorageError, ValueError, KeyError])
def test_a_fault_of_data_settings_or_files_is_told_by_its_kind_alone(kind):
    told = scrubbed(kind(f"/data/ward {SECRET} 3/age.csv: first '{SECRET}' in row 17; correct it"))
    assert getattr(kind, "kind", kind.__name__) in told
    assert SECRET not in told
    assert "17" not in told


def test_a_fault_of_a_message_is_told_without_its_paths():
    assert scrubbed(ProtocolError("the row in /kit/state is old")) == "PROTOCOL: the row in (path) is old"


def test_a_cell_that_cannot_be_read_is_not_told(world):
    """A silo's table has a name where a number belongs: its own log says where, the server learns that data are wrong."""
    federation = world.federation(quorum=2, wait=0.5)
    kit = federation.kits / "silo-1"
    lines = ["a,b,label", *(f"{k},{k},{k % 2}" for k in range(40))]
    lines[20] = f"3,{SECRET},1"
    (kit / "table.csv").write_text("\n".join(lines) + "\n")
    (kit / "silo.toml").write_text(
        'name = "silo-1"\n[data]\nname = "csv"\npath = "table.csv"\nlabel_column = "label"\n'
    )
    replies = []
    federation.grid.faults.append(lambda message, reply: replies.append(unpacked(reply.content).body) or reply)
    federation.run()
    said = [line for line in audit.read(federation.server / "run/audit.jsonl") if line["event"] == "refused"]
    assert {line["silo"]: line["reason"] for line in said} == {"silo-1": "DATA; the silo's log has the rest"}
    assert SECRET not in "".join(replies)
    assert SECRET in (kit / "state/logs/app.log").read_text()


def test_settings_that_cannot_be_read_are_not_told_to_flower(world):
    """Flower sends the text of what an app raises: of a silo.toml that is damaged, its path and what stands in it."""
    federation = world.federation()
    kit = federation.kits / "silo-1"
    federation.run()
    message = next(m for m in federation.grid.sent if m.metadata.dst_node_id == 11)
    (kit / "silo.toml").write_text(f'name = "silo-1"\ndevice = "{SECRET}"\n')
    own_kit.use(kit)
    with pytest.raises(RuntimeError) as raised:
        client_app(message, Context(1, 11, {}, RecordDict(), {}))
    assert SECRET not in str(raised.value)
    assert str(kit) not in str(raised.value)
    assert "CONFIG" in str(raised.value)


def test_which_silo_a_process_is_no_context_says(world, tmp_path):
    """Flower keeps a run's context between messages, as whoever did the last one gave it back."""
    federation = world.federation()
    federation.run()
    message = federation.grid.sent[0]
    other = tmp_path / "evil"
    other.mkdir()
    own_kit.use(federation.kits / "silo-0")
    answer = client_app(message, Context(1, 10, {"folder": str(other)}, RecordDict(), {"folder": str(other)}))
    assert unpacked(answer.content).kind == "hello-reply"
    assert not list(other.iterdir())
    assert str(other) not in sys.path
