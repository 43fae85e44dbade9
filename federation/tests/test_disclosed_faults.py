"""Faults as disclosed to the server: nothing of a silo's data, settings or files."""

import json
import shutil
import sys
from errno import ENOSPC
from math import nan

import pytest
from flwr.app import Context, RecordDict

from federation_in_process import audited
from pomona.core.errors import (
    BudgetError,
    ConfigError,
    DataError,
    OutOfMemoryError,
    ProtocolError,
    StorageError,
)
from pomona.core.files import publish
from pomona.data.reader_process import CrashError
from pomona.objective.pytorch import TorchObjective
from pomona_federation import json_store
from pomona_federation.flower_apps import client_app
from pomona_federation.messages.message_bus import unpacked
from pomona_federation.server.round_messages import checked_scores
from pomona_federation.silo.outgoing_filter import scrubbed
from pomona_federation.silo.settings import use_kit
from pomona_federation.silo.silo_in_study import Silo
from test_hostile_server import Server, noise

pytestmark = pytest.mark.long

SECRET = "Weber"


@pytest.mark.parametrize(
    "fault",
    [
        DataError,
        CrashError,
        OutOfMemoryError,
        ConfigError,
        StorageError,
        BudgetError,
        ValueError,
        KeyError,
    ],
)
def test_a_fault_of_data_settings_or_files_is_told_by_its_kind_alone(fault):
    text = scrubbed(fault(f"/data/ward {SECRET} 3/age.csv: first '{SECRET}' in row 17; correct it"))
    assert getattr(fault, "label", fault.__name__) in text
    assert SECRET not in text
    assert "17" not in text


def test_a_fault_of_a_message_is_told_without_its_paths():
    assert (
        scrubbed(ProtocolError("the row in /kit/state is old"))
        == "PROTOCOL: the row in (path) is old"
    )


def test_a_cell_that_cannot_be_read_is_not_told(world):
    """A silo's table has a name where a number belongs: its own log says where, the server learns
    that data are wrong.
    """
    federation = world.federation(quorum=2, wait=0.5)
    kit = federation.kits / "silo-1"
    lines = ["a,b,label", *(f"{k},{k},{k % 2}" for k in range(40))]
    lines[20] = f"3,{SECRET},1"
    (kit / "table.csv").write_text("\n".join(lines) + "\n")
    (kit / "silo.toml").write_text(
        'name = "silo-1"\n[data]\nname = "table"\npath = "table.csv"\nlabel_column = "label"\n'
    )
    replies = []
    federation.grid.faults.append(
        lambda message, reply: replies.append(unpacked(reply.content).body) or reply
    )
    federation.run()
    entries = audited(federation.server / "run", "unused")
    assert {line["silo"]: line["detail"] for line in entries} == {
        "silo-1": "DATA; the silo's log has the rest"
    }
    assert SECRET not in "".join(replies)
    assert SECRET in (kit / "state/logs/app.log").read_text()


def test_a_full_disk_at_a_silo_is_told(world):
    """Its refusal was to be noted on the same disk first: the server read of an OSError, unsigned,
    by Flower.
    """
    federation = world.federation(quorum=2, wait=0.5)
    state = federation.kits / "silo-1" / "state"

    def no_space(path, *args):
        if path.is_relative_to(state) and (state / "origin.json").exists():
            raise OSError(ENOSPC, "No space left on device")
        return publish(path, *args)

    world.patch.setattr(json_store, "publish", no_space)
    federation.run()
    entries = audited(federation.server / "run", "unused")
    assert {line["silo"]: line["detail"] for line in entries} == {
        "silo-1": "STORAGE: its disk is full"
    }


def test_settings_that_cannot_be_read_are_not_told_to_flower(world):
    """Flower sends the text of what an app raises: of a silo.toml that is damaged, its path and
    what stands in it.
    """
    federation = world.federation()
    kit = federation.kits / "silo-1"
    federation.run()
    message = next(m for m in federation.grid.sent if m.metadata.dst_node_id == 11)
    (kit / "silo.toml").write_text(f'name = "silo-1"\ndevice = "{SECRET}"\n')
    use_kit(kit)
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
    foreign = tmp_path / "evil"
    foreign.mkdir()
    use_kit(federation.kits / "silo-0")
    answer = client_app(
        message, Context(1, 10, {"folder": str(foreign)}, RecordDict(), {"folder": str(foreign)})
    )
    assert unpacked(answer.content).message_type == "hello-reply"
    assert not list(foreign.iterdir())
    assert str(foreign) not in sys.path


# A model whose weights are so large that its loss is not a number on some samples, and is one on
# others


def huge(server):
    """An evaluation of a model whose outputs overflow on all samples, as a hostile server could
    choose them.
    """
    return server.task(1, noise(3) * 1e30, trains=False)


def test_where_no_scores_are_shared_a_loss_that_is_no_number_is_not_told(world):
    server, answers = Server(world.federation("fedavg", share_scores=False, places=7)), []
    for task, enclosed in (server.task(1, noise(1), trains=False), huge(server)):
        (server.kit() / "state/asked.json").unlink(missing_ok=True)
        answer, _ = server.ask(task, enclosed)
        answers.append(answer.model_copy(update={"task": "0" * 64, "seconds": 0.0, "held": ()}))
    assert answers[0] == answers[1]
    assert (answers[1].fault, answers[1].scores) == ("", ())
    harmless, diverged = map(
        json.loads, (server.kit() / "state/rounds.jsonl").read_text().splitlines()
    )
    assert harmless["diverged"] == []
    assert "global on test" in diverged["diverged"]  # in the silo's own history


def test_where_scores_are_shared_it_is_a_score_without_values(world):
    server = Server(world.federation("fedavg", places=7))
    answer, _ = server.ask(*huge(server))
    terms = Silo(server.kit()).terms
    assert answer.fault == ""
    losses = {score.split: score.loss for score in checked_scores(answer, {"received"}, terms)}
    assert losses["test"] is None


def test_an_evaluation_that_diverges_takes_no_uplink_away(world, monkeypatch):
    """The same bytes as where it does not, also in the last round, after which a card is
    written.
    """
    server = Server(world.federation("fedavg", run={"rounds": 1}, share_scores=False, places=7))
    task, enclosed = server.task(1, noise(1))
    _, expected = server.ask(task, enclosed)
    for state in (server.kit() / "state/checkpoints", server.kit() / "state/models"):
        shutil.rmtree(state)

    def overflowing(self, *args, **kwargs):
        outputs = batchwise(self, *args, **kwargs)
        return tuple(t * nan if t.is_floating_point() else t for t in outputs)

    batchwise = TorchObjective.batchwise
    monkeypatch.setattr(TorchObjective, "batchwise", overflowing)
    answer, uplink = server.ask(task, enclosed)
    assert (answer.fault, uplink == expected, len(uplink) > 0) == ("", True, True)
