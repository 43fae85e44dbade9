"""A silo restored from a backup older than the study's round sits out, and is taken again by the
lead.
"""

import pytest

from federation_in_process import APPLE, deployed, equal, lost, stopped_after
from pomona.core.errors import CheckpointError, ConfigError
from pomona.privacy.ledger import Ledger
from pomona.record.run_folder import load
from pomona.storage import checkpoint
from pomona.storage.run_status import committed
from pomona.storage.safetensors_stream import memory
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import complete_lines
from pomona_federation.installation.backup import backup
from pomona_federation.messages.message_bodies import Task, read
from pomona_federation.messages.message_bus import unpacked
from pomona_federation.messages.tensor_bytes import sha256
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo.round_store import RoundStore
from representatives import drawn
from test_backup import NODE, PRIVATE, SILO, restored

pytestmark = pytest.mark.long

CLIENT = 1
METHODS = ["ditto", "fedala", "fedper", "fedfomo", "pgfed", "auto"]
SUMS = {"secure_aggregation": {"minimum": 2, "max_norm": 10.0}}


def behind(world, method=APPLE, run=(), backup_round=1, **options):
    """A federation whose silo-1 is restored, after round 3, from a backup of ``backup_round`` (0:
    of a state without the study); it has sat round 4 out.
    """
    federation = world.federation(method, {"rounds": 7, **dict(run)}, quorum=2)
    if backup_round:
        stopped_after(federation, world.patch, backup_round)
    backup(federation.kits / SILO, world.folder / "it.tar")
    stopped_after(federation, world.patch, 3)
    restored(federation, world.folder / "it.tar", **options)
    stopped_after(federation, world.patch, 4)
    assert cohorts(federation)[4] == (0, 2)
    return federation


def readmitted_tasks(federation):
    """Take the silo again, and run to the end; its tasks in round 5."""
    federation.grid.sent.clear()
    StudyQueue(federation.server).readmit(SILO)
    federation.run()
    return [task for task in tasks(federation) if task.number == 5]


def tasks(federation):
    messages = [unpacked(m.content) for m in federation.grid.sent if m.metadata.dst_node_id == NODE]
    return [read(Task, body.body) for body in messages if body.message_type == "task"]


def cohorts(federation):
    return {row.round: row.cohort for row in load(federation.server / "run").rounds}


def lines(kit, event):
    state = kit / ("run" if kit.name == "server" else "state")
    return [line for line in complete_lines(state / "audit.jsonl") if line["event"] == event]


CASES = [(APPLE, ()), ("fedavg", ()), ("fedavg", SUMS), *((method, ()) for method in METHODS)]


@pytest.mark.parametrize("backup_round", drawn([1, 0]))
@pytest.mark.parametrize(("method", "run"), drawn(CASES), ids=str)
def test_a_restored_silo_sits_out_and_is_taken_again(method, run, backup_round, world):
    federation = behind(world, method, run, backup_round)
    kit, server = federation.kits / SILO, federation.server
    (unused,) = lines(server, "unused")
    assert unused["reason"] == "silo-state"
    state = "its state is of round 1" if backup_round else "it has no state of the study"
    for phrase in (state, "from a backup of 2", "this silo's round 3", "pomona server readmit"):
        assert phrase in unused["detail"]
    (task,) = readmitted_tasks(federation)
    assert (task.readmitted, task.settled) == (True, 3)
    assert {cohorts(federation)[number] for number in (5, 6, 7)} == {(0, 1, 2)}
    for log in (kit, server):
        (line,) = [line for line in lines(log, "readmitted") if "continued" in line]
        assert (line["round"], line["settled"], line["continued"]) == (5, 3, backup_round)
    (note,) = [n.text for n in load(server / "run").notes if "readmitted" in n.text]
    for phrase in (SILO, "round 1" if backup_round else "as a newcomer", "lost"):
        assert phrase in note


def test_a_method_without_private_state_is_as_if_the_silo_had_been_absent(world):
    federation = behind(world, "fedavg")
    readmitted_tasks(federation)
    assert equal(deployed(federation), world.simulated(federation, absent={(4, CLIENT)}))


def test_without_any_state_a_silo_begins_from_its_own_last_model(world):
    """That it has signed, and that others go on to receive under its signature."""
    federation = behind(world, APPLE, backup_round=0)
    (_, path) = committed(federation.server / "run" / "checkpoints")[-1]
    last = checkpoint.read(path).tensors["server.cores"][CLIENT]
    (task,) = readmitted_tasks(federation)
    assert task.start == sha256(memory(last))


@pytest.mark.parametrize("backup_round", drawn([1, 0]))
def test_of_a_private_study_the_ledger_decides(backup_round, world):
    """Older, it counts all that may have been spent since; without it there is no beginning
    anew.
    """
    pytest.importorskip("opacus")
    federation = behind(world, "fedavg", {"privacy": PRIVATE}, backup_round, trained_until=4)
    readmitted_tasks(federation)
    kit = federation.kits / SILO
    assert {cohorts(federation)[n] for n in (5, 6, 7)} == {(0, 1, 2) if backup_round else (0, 2)}
    if backup_round:
        (ledger,) = (kit / "state" / "private" / "dp").glob("client-*/ledger.jsonl")
        assert {draw.round for draw in Ledger.open(ledger)._batches} == set(range(1, 8))
    else:
        assert "privacy spent" in lines(federation.server, "unused")[-1]["detail"]


def test_answers_that_are_lost_leave_the_state_that_it_continues_from(world):
    """Rounds that do not count push the old one out of the files of the newest otherwise."""
    federation = behind(world, "ditto")

    def losing(message, reply):
        body = unpacked(message.content)
        early = body.message_type == "task" and read(Task, body.body).number < 7
        return lost(message, 2) if early and message.metadata.dst_node_id == NODE else reply

    federation.grid.faults.append(losing)
    readmitted_tasks(federation)
    assert (cohorts(federation)[6], cohorts(federation)[7]) == ((0, 2), (0, 1, 2))
    assert {line["continued"] for line in lines(federation.server, "readmitted")[1:]} == {1}


def test_taking_a_healthy_silo_again_changes_nothing(world):
    federation = world.federation(APPLE)
    stopped_after(federation, world.patch, 1)
    StudyQueue(federation.server).readmit(SILO)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


@pytest.mark.parametrize("server_says", [{"readmitted": False}, {"settled": 1}], ids=str)
def test_a_server_cannot_have_a_state_begin_anew_that_is_there(server_says, world):
    """A round that a silo has, or one before all of its, is never exchanged for a new start."""
    federation = world.federation("fedavg", {"rounds": 6})
    stopped_after(federation, world.patch, 5)
    task = tasks(federation)[-1].model_copy(
        update={"number": 6, "settled": 2, "readmitted": True, **server_says}
    )
    rounds = RoundStore(federation.kits / SILO / "state" / "checkpoints")
    with pytest.raises(CheckpointError, match=r"its state is of round 5.*submit the study again"):
        rounds.base(task)


@pytest.mark.parametrize(
    ("method", "sums"),
    [
        ("scaffold", "control variates"),
        pytest.param("feddyn", "linear terms", marks=pytest.mark.long),
    ],
)
def test_who_cannot_be_taken_again_is_refused(method, sums, world):
    federation = world.federation(method, quorum=1)
    with pytest.raises(ConfigError, match="no such study has begun"):
        StudyQueue(federation.server).readmit(SILO)
    late = federation.grid.folders.pop(12)
    stopped_after(federation, world.patch, 1)
    with pytest.raises(ConfigError, match=rf"{sums} .* takes part in the next"):
        StudyQueue(federation.server).readmit(SILO)
    registry = MemberRegistry(federation.server / "run", Federation.load(federation.toml))
    with pytest.raises(ConfigError, match="silo-2 has not taken part"):
        registry.readmit("silo-2")
    registry.revoke("silo-0")
    with pytest.raises(ConfigError, match="silo-0 is revoked"):
        registry.readmit("silo-0")
    assert late
