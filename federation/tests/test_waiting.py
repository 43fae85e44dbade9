"""The silos that a server waits for, before a study and during a round, and as shown by `server
status`.
"""

import json
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pomona.cli import main
from pomona.core.errors import QuorumError
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, write_status
from pomona_federation import status, versions
from pomona_federation.audit_log import Audit
from pomona_federation.messages.message_bus import unpacked
from pomona_federation.messages.study_bodies import Decision
from pomona_federation.server import message_exchange, outgoing_messages
from pomona_federation.server.consents import Consents
from pomona_federation.server.contacts import Contact
from pomona_federation.server.flower_transport import FlowerTransport
from pomona_federation.server.handshake import TIMEOUT, Handshake
from pomona_federation.server.outgoing_messages import WaitingFile, progress
from pomona_federation.server.round_messages import OutgoingTask
from pomona_federation.supervision.status_files import (
    MAX_SILOS,
    WAITING,
    WaitingStatus,
    read_status_file,
)
from pomona_federation.unused_uplinks import Reason

pytestmark = pytest.mark.long


@dataclass
class Clock:
    """A clock that advances only during sleeps."""

    now: float = 0.0
    events: dict = field(default_factory=dict)  # second -> what happens then

    def sleep(self, seconds):
        self.now += seconds
        for moment in [at for at in self.events if at <= self.now]:
            self.events.pop(moment)()


class Members:
    """A registry that its operator changes while the server waits for silos."""

    def __init__(self, folder, *names):
        self.path = folder / "roster.json"
        self.entries = [SimpleNamespace(name=n, revoked=False) for n in names]

    def add(self, name):
        self.entries.append(SimpleNamespace(name=name, revoked=False))


class Nodes(Handshake):
    """A handshake in which node k is place k, and the nodes in ``pending_nodes`` have been asked for their
    identity.
    """

    pending_nodes = ()

    def __init__(self, registry, bus):
        self.registry, self.bus = registry, bus
        self.nodes, self.pending_nodes, self.turned_away = {}, [], {}

    @property
    def tickets(self):
        return [str(n) for n in self.pending_nodes]

    def send_hellos(self):
        pass

    def met(self, number):
        self.pending_nodes = [n for n in self.pending_nodes if n != number]
        self.nodes[number] = number


@pytest.fixture
def gathering(tmp_path, monkeypatch):
    """A clock, the members, the nodes, and the transport between them."""
    clock, members = Clock(), Members(tmp_path, "north", "south")
    for module in (message_exchange, outgoing_messages):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    bus = SimpleNamespace(fetch=lambda tickets: {}, wait=clock.sleep)
    config, audit = SimpleNamespace(secure_aggregation=None), Audit(tmp_path / "audit.jsonl")
    federation = SimpleNamespace(study=SimpleNamespace(wait=600.0), quorum=2, config=config)
    transport = FlowerTransport(
        federation, members.path.parent, "ab", SimpleNamespace(relays={}), members, bus, audit
    )
    nodes = transport.exchange.handshake = Nodes(members, bus)
    return clock, members, nodes, transport


def waiting(folder):
    return read_status_file(WaitingStatus, folder / WAITING)


def test_a_newcomer_who_greets_while_silos_are_gathered_holds_up_nobody(gathering):
    """West is added and greets at 2 s, the founders at 3 s: all are there at 4 s, of 600."""
    clock, members, nodes, transport = gathering

    def arrives():
        members.add("west")
        nodes.pending_nodes.append(2)

    clock.events = {1: arrives, 3: lambda: (nodes.met(0), nodes.met(1)), 4: lambda: nodes.met(2)}
    transport.exchange.gather()
    assert clock.now == 4


def test_a_node_that_never_says_who_it_is_holds_up_nobody_once_all_silos_are_there(gathering):
    """Neither the beginning, nor any round after it."""
    clock, _, nodes, transport = gathering
    nodes.pending_nodes.append(9)
    clock.events = {1: lambda: (nodes.met(0), nodes.met(1))}
    transport.exchange.gather()
    transport.greet()
    assert (clock.now, nodes.pending_nodes) == (1, [9])


def test_a_node_that_is_asked_who_it_is_at_the_end_has_time_to_answer(gathering):
    clock, _, nodes, transport = gathering
    nodes.met(0)
    nodes.pending_nodes.append(1)
    clock.events = {700: lambda: nodes.met(1)}
    transport.exchange.gather()
    assert clock.now == 700
    nodes.nodes.pop(1)
    nodes.pending_nodes.append(1)
    with pytest.raises(QuorumError):
        transport.exchange.gather()
    assert clock.now == 700 + 600 + TIMEOUT + 1


def test_a_silo_whose_versions_do_not_work_with_the_servers_is_not_waited_for(gathering):
    clock, members, nodes, transport = gathering
    members.add("east")
    incompatible = versions.installed().model_copy(update={"flower": "1.1.0"})
    versions.note(members.path.parent, "east", incompatible)
    clock.events = {1: lambda: (nodes.met(0), nodes.met(1))}
    transport.exchange.gather()
    assert clock.now == 1


def test_who_is_revoked_while_silos_are_gathered_is_not_waited_for(gathering):
    clock, members, nodes, transport = gathering
    members.add("east")

    def leaves():
        members.entries[2].revoked = True

    clock.events = {1: lambda: (nodes.met(0), nodes.met(1)), 5: leaves}
    transport.exchange.gather()
    assert clock.now == 5


def test_who_declines_while_silos_are_gathered_is_not_waited_for(gathering):
    clock, members, nodes, transport = gathering
    members.add("east")
    declined = set()
    clock.events = {1: lambda: (nodes.met(0), nodes.met(1)), 5: lambda: declined.add("east")}
    transport.exchange.gather(lambda silos: set(silos) - declined)
    assert clock.now == 5


def test_a_study_waits_for_those_who_have_accepted_it_and_the_kits_own_for_all(gathering, tmp_path):
    """A third silo that never came: after `study begin` nothing waits for it."""
    clock, members, nodes, transport = gathering
    members.add("west")
    consents = Consents(tmp_path)
    names = [entry.name for entry in members.entries]
    assert consents.awaited(names) == set(names)
    for entry in members.entries[:2]:
        consents.record(Decision(silo=entry.name, study="ab" * 32, accepted=True), "cd")
    clock.events = {1: lambda: (nodes.met(0), nodes.met(1))}
    transport.exchange.gather(consents.awaited)
    assert clock.now == 1


def test_whoever_stays_away_is_named_all_the_while_and_at_the_end(gathering, tmp_path, caplog):
    clock, _, nodes, transport = gathering
    statuses = []

    def answers():
        statuses.append(waiting(tmp_path))
        nodes.pending_nodes.clear()

    clock.events = {1: lambda: nodes.met(0), 2: lambda: nodes.pending_nodes.append(7), 9: answers}
    with (
        caplog.at_level(logging.INFO, "pomona"),
        pytest.raises(QuorumError, match=r"1 of 2 .*missing: south"),
    ):
        transport.exchange.gather()
    assert clock.now == 601  # the first look after 600 s
    (status,) = statuses
    assert (status.stage, status.answered, status.until - status.since) == (
        "gathering silos",
        ("north",),
        600,
    )
    assert (status.missing, status.asked) == (
        {"south": "has not identified itself"},
        ("north", "south"),
    )
    lines = [r.message for r in caplog.records]
    assert len(lines) == 11  # at once, and each minute until 600 s
    assert all("south (has not identified itself)" in line for line in lines)


def test_how_the_tasks_of_a_round_stand():
    names = {3: "east", 0: "north", 1: "south", 2: "west", 4: "clinic"}
    tasks = {number: OutgoingTask(name, None, {}) for number, name in names.items()}
    tasks[1].answered = tasks[1].finished = True
    tasks[2].fail(Reason.NODE_RESTARTED)
    tasks[4].fail(Reason.ROWS_MISSING, retry=True)
    contacts = {"north": Contact(False, 60.0, 60.0), "clinic": Contact(True, 0.0, 70.0)}
    missing = {
        "north": "is not connected since 1970-01-01 00:01:00Z, given up after 300 s",
        "east": "has not answered yet",
        "clinic": "is not connected, given up after 300 s",
    }
    assert progress(tasks, [3], contacts, 300.0) == (["south"], missing, ["west"])


def test_a_line_names_some_silos_and_counts_the_others():
    missing = {f"silo-{k:02d}": "is not connected" for k in range(MAX_SILOS + 3)}
    line = WaitingStatus(stage="round 2", since=0, until=60, asked=[*missing], missing=missing).line
    assert "round 2: 0 of 15 have answered since 1970-01-01 00:00:00Z" in line
    assert "until 1970-01-01 00:01:00Z" in line
    assert f"silo-{MAX_SILOS - 1:02d} (is not connected) and 3 more" in line
    assert f"silo-{MAX_SILOS:02d}" not in line


def test_a_full_disk_does_not_end_the_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(
        outgoing_messages, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
    )
    file = WaitingFile(tmp_path)
    file.start("round 1", 1)
    file.update([], {"north": "has not answered yet"})


def test_status_says_for_whom_a_round_waits(world, capsys):
    """Silo-1 does not answer in round 2.

    Before round 1, all three have greeted; nothing stands of a life before.
    """
    federation, stages, outputs, update = world.federation(deadline=2.0), {}, [], WaitingFile.update
    run = federation.server / "run"

    def silent(message, reply):
        body = json.loads(unpacked(message.content).body)
        return None if (body.get("number"), message.metadata.dst_node_id) == (2, 11) else reply

    def recorded(file, *args):
        update(file, *args)
        with locked(run):
            stages.setdefault(file._status.stage, []).append(status.server(federation.server))
            if file._status.missing and not outputs:
                with pytest.raises(SystemExit, match="0"):
                    main(["server", "status", "--folder", str(federation.server)])
                outputs.append(capsys.readouterr().out)

    world.patch.setattr(WaitingFile, "update", recorded)
    federation.grid.faults.append(silent)
    federation.run()
    first, second, last = stages["round 1"][0], stages["round 2"][0], stages["round 2"][-1]
    assert [silo["state"] for silo in first["silos"]] == ["greeted"] * 3
    assert second["waiting"]["missing"] == {"silo-1": "has not answered yet"}
    assert second["waiting"]["answered"] == ["silo-0", "silo-2"]
    assert second["waiting"]["until"] - second["waiting"]["since"] == pytest.approx(2.0)
    assert last["waiting"]["missing"] == {}
    assert "2 of 3 have answered" in last["waiting"]["line"]
    assert "round 2: 2 of 3 have answered since" in " ".join(outputs[0].split())
    assert "for silo-1 (has not answered yet)" in " ".join(outputs[0].split())
    assert status.server(federation.server)["waiting"] is None  # it has finished
    write_status(run, Status(state="running", round=3))
    with locked(run):
        # started again, and silos are not gathered yet
        assert status.server(federation.server)["waiting"] is None


def test_a_time_that_no_clock_shows_is_said_to_be_unknown():
    assert "since an unknown time" in WaitingStatus(stage="round 1", since=1e300).line
