"""The message bus over Flower's grid: which answers are pulled, and how many at a time."""

from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace

import pytest
from flwr.app import Error
from flwr.common.constant import ErrorCode

from pomona_federation.messages.message_bus import Message
from pomona_federation.server import flower_bus
from pomona_federation.server.flower_bus import MAX_PULLS, REASONS, FlowerBus, received


@dataclass
class Notified:
    """Tickets that the gate reports, once."""

    tickets: frozenset[str] = frozenset()

    def wait(self, seconds):
        tickets, self.tickets = self.tickets, frozenset()
        return tickets


@dataclass
class Pulled:
    """A grid with all answers present; records what is pulled."""

    asked: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def pull_messages(self, tickets):
        with self.lock:
            self.asked += tickets
        return [tickets[0]]


@pytest.fixture
def bus(monkeypatch):
    """A bus that has just looked for all answers."""
    monkeypatch.setattr(flower_bus, "received", lambda ticket: Message("answer", ticket, ""))
    idle_bus = FlowerBus(Pulled(), Notified(frozenset({"first"})))
    assert set(idle_bus.fetch(["first"])) == {"first"}
    idle_bus.grid.asked.clear()
    return idle_bus


def test_flowers_error_numbers_are_told_in_words():
    """Of every code that Flower has: what it says of the silo, and whether it is sent again."""
    codes = [code for name, code in vars(ErrorCode).items() if name.isupper()]
    assert {*REASONS} < {*codes}
    for code in codes:
        message = SimpleNamespace(has_error=lambda: True, error=Error(code, "/home/a/secret"))
        undelivered = received(message)
        assert undelivered.reason in REASONS.values() or undelivered.reason == "node-refused"
        assert undelivered.detail == f"Flower's error {code}"
        assert undelivered.retry == (code in {3, 5, 8})


@pytest.mark.parametrize("n", [0, 1, MAX_PULLS, MAX_PULLS + 1, 3 * MAX_PULLS])
def test_whole_answers_are_pulled_a_few_at_a_time_and_none_is_lost(bus, n):
    tickets = [f"t{i}" for i in range(n)]
    bus.arrivals.tickets = frozenset(tickets)
    got = []
    for _ in range(n):
        messages = bus.fetch([t for t in tickets if t not in got])
        assert len(messages) <= MAX_PULLS
        got += messages
    assert sorted(got) == sorted(tickets)
    assert sorted(bus.grid.asked) == sorted(tickets)


def test_a_look_for_all_leaves_out_whole_ones_that_wait(bus, monkeypatch):
    monkeypatch.setattr(flower_bus, "SWEEP", 0.0)
    waiting, quiet = [f"t{i}" for i in range(MAX_PULLS + 2)], ["quiet"]
    bus.arrivals.tickets = frozenset(waiting)
    assert len(bus.fetch(waiting + quiet)) == MAX_PULLS + 1
    assert "quiet" in bus.grid.asked


def test_what_is_told_of_a_message_that_nobody_waits_for_is_forgotten(bus):
    bus.arrivals.tickets = frozenset({"late"})
    assert bus.fetch(["t"]) == {}
    assert bus.fetch(["t", "late"]) == {}
