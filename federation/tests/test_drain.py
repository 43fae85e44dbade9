"""A drained server finishes its round, begins nothing, and continues to the bit; and how long a
round waits for silos that are gone.
"""

import json
from types import SimpleNamespace

import pytest

from federation_in_process import deployed, equal
from pomona.cli import main
from pomona.lifecycle import recorded_status
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation import status
from pomona_federation.audit_log import Audit, complete_lines
from pomona_federation.messages.message_bus import Undelivered
from pomona_federation.server import message_exchange, outgoing_messages
from pomona_federation.server.contacts import Contact
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.round_messages import OutgoingTask
from pomona_federation.server.study_queue import DRAIN, StudyQueue, require_undrained
from pomona_federation.server.superlink_supervisor import Observation, next_action
from pomona_federation.unused_uplinks import Reason
from test_preflight import server_kit
from test_waiting import Clock, Members


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 3])
def test_a_drained_study_continues_to_the_bit(number, world):
    """Also after its last round, before the closing visit."""
    federation, messages = world.federation(), []

    def drains(message, reply):
        messages.append(message)
        if len(messages) == 3 * number + 1:  # three hellos, and three tasks a round
            StudyQueue(federation.server).drain(enabled=True)
        return reply

    federation.grid.faults.append(drains)
    for _ in range(2):  # a server that is started again stays drained
        with pytest.raises(SystemExit):
            federation.run()
        stopped = read_status(federation.server / "run")
        assert (stopped.state, stopped.code, stopped.round) == ("interrupted", 143, number)
        assert "undrain" in stopped.reason
        assert len(messages) == 3 * number + 3
    assert StudyQueue(federation.server).next() is None
    assert status.server(federation.server)["drain"] == "drained"
    StudyQueue(federation.server).drain(enabled=False)
    assert StudyQueue(federation.server).next()
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_drain_and_undrain_say_what_follows_and_are_audited_once(tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    run = folder / "run"
    run.mkdir()

    def drain(action):
        with pytest.raises(SystemExit, match="0"):
            main(["server", action, "--json", "--folder", str(folder)])
        return json.loads(capsys.readouterr().out)["drain"]

    assert [drain(action) for action in ("drain", "drain", "undrain", "undrain")] == [
        "drained",
        "drained",
        "",
        "",
    ]
    write_status(run, Status(state="running", round=1))
    with locked(run):
        assert drain("drain") == "draining"
    events = [e["event"] for e in complete_lines(run / "audit.jsonl")]
    assert events == ["drained", "undrained", "drained"]


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [(None, "drained"), (OSError(), "resubmit"), (SystemExit(143), "resubmit")],
)
def test_a_study_that_a_drain_has_ended_says_so_and_is_not_lost(fault, verdict, tmp_path):
    """Also if the server is undrained before its supervisor looks."""
    (tmp_path / DRAIN).touch()

    def run_with_status():
        with recorded_status(tmp_path):
            if fault:
                raise fault
            require_undrained(tmp_path)

    with pytest.raises((SystemExit, OSError)):
        run_with_status()
    (tmp_path / DRAIN).unlink()
    recorded = read_status(tmp_path)
    assert ("undrain" in recorded.reason) == (verdict == "drained")
    observation = Observation(recorded, 1.0, link=True, app=False)
    assert next_action(observation) == verdict


NODE = 7


class Line:
    """A bus of one node, and the gate's knowledge of its silo, by a clock.

    ``online``, ``seen`` and ``since`` are functions of the time; answers come ``after`` seconds.
    """

    def __init__(self, clock, online, seen, since=lambda now: 0.0, after=1e9):
        self.clock, self.seen, self.since, self.after = clock, seen, since, after
        self.tickets, self.wait, self._online = {}, clock.sleep, online

    def online(self):
        return {NODE} if self._online(self.clock.now) else set()

    def send(self, messages):
        tickets = [f"t{len(self.tickets) + k}" for k in range(len(messages))]
        self.tickets |= dict.fromkeys(tickets, self.clock.now)
        return tickets

    def fetch(self, tickets):
        if not self.online():
            return {t: Undelivered(Reason.NODE_RESTARTED, "", retry=True) for t in tickets}
        now, begun = self.clock.now, self.since(self.clock.now)
        whole = [t for t in tickets if self.tickets[t] >= begun]  # those before are lost
        return {t: t for t in whole if now > self.tickets[t] + self.after}

    def contacts(self, _):
        now = self.clock.now
        return {"south": Contact(bool(self.online()), self.since(now), self.seen(now))}


@pytest.fixture
def visit(tmp_path, monkeypatch):
    """Send one task over a line, with patience = 15; the task, and the line."""

    def sends(**times):
        line = Line(Clock(), **times)
        for name in ("monotonic", "time"):
            monkeypatch.setattr(message_exchange, name, lambda: line.clock.now)
        monkeypatch.setattr(message_exchange, "contacts", line.contacts)
        monkeypatch.setattr(outgoing_messages, "write_json", lambda *_: None)
        agreed = SimpleNamespace(study=SimpleNamespace(deadline=600.0, patience=15.0))
        members = Members(tmp_path, "south")
        with Audit(tmp_path / "audit.jsonl") as audit:
            exchange = MessageExchange(agreed, tmp_path, "ab", members, line, audit, 1.0)
            exchange.handshake = SimpleNamespace(
                nodes={0: NODE}, tickets=(), send_hellos=lambda: None
            )
            task = Task("south", None)
            exchange.send_all("round 1", {0: task}, lambda *_: task.answer())
        return task, line

    return sends


class Task(OutgoingTask):
    """A task without rows."""

    def __init__(self, silo, body):
        super().__init__(silo, body, {})

    @property
    def audit_fields(self):
        return {"round": 1}

    def message(self):
        return SimpleNamespace(size=1)

    def answer(self):
        self.answered = self.finished = True


def test_a_node_that_left_in_order_is_waited_for_as_long_as_patience_says(visit):
    task, line = visit(online=lambda now: now < 5, seen=lambda now: min(now, 5.0))
    assert task.reason is Reason.NOT_CONNECTED
    assert 19 < line.clock.now <= 22


def test_patience_counts_from_the_last_sign_of_life_not_from_superlinks_notice(visit):
    """A machine that loses its power at 5 s; SuperLink notices at 65 s."""
    task, line = visit(online=lambda now: now < 65, seen=lambda now: min(now, 5.0))
    assert task.reason is Reason.NOT_CONNECTED
    assert 65 <= line.clock.now <= 67


def test_a_silo_without_a_sign_of_life_for_long_gets_patience_from_the_rounds_beginning(visit):
    task, line = visit(online=lambda _: False, seen=lambda _: -1e6)
    assert task.reason is Reason.NOT_CONNECTED
    assert 15 < line.clock.now <= 17


def test_a_task_is_sent_again_to_a_node_that_was_killed_and_is_back(visit):
    """Killed, and back after 10 s; SuperLink has not seen it go. An answer takes 20 s."""
    task, line = visit(
        online=lambda _: True,
        seen=lambda now: now,
        since=lambda now: 10.0 if now >= 10 else 0.0,
        after=20.0,
    )
    assert (task.answered, task.attempts) == (True, 2)
    assert 30 < line.clock.now <= 32


def test_a_node_that_does_not_come_back_before_the_deadline_is_said_to_have_been_restarted(visit):
    task, _ = visit(online=lambda _: True, seen=lambda now: now, since=lambda now: now)
    assert (task.answered, task.reason) == (False, Reason.NODE_RESTARTED)
