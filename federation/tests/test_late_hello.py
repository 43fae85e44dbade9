"""A silo on a busy machine says who it is after the server has asked again: its answer counts."""

from types import SimpleNamespace

import pytest

from pomona.core.errors import StorageError
from pomona.storage.lock import waiting_lock
from pomona_federation.messages.message_bus import Undelivered, untrusted
from pomona_federation.server import handshake
from pomona_federation.server.handshake import LIFETIME, RESTART, TIMEOUT, Handshake
from pomona_federation.unused_uplinks import Reason

NODE = 7


class Hellos(Handshake):
    """A handshake that takes every answer for that of the silo with place 0."""

    def _identify(self, node, hello, message):
        self.nodes[0] = node


@pytest.fixture
def asking(tmp_path, monkeypatch):
    """``at(second, answers)`` greets the node at that time, with the answers that come then, by
    ticket; ``sent`` are the messages.
    """
    clock, sent_messages = SimpleNamespace(at=0.0, answers={}), []

    def send(messages):
        sent_messages.extend(messages)
        return [f"hello {len(sent_messages)}" for _ in messages]

    def fetch(tickets):
        return {ticket: clock.answers[ticket] for ticket in tickets if ticket in clock.answers}

    def greet_at(second, **answers):
        clock.at, clock.answers = second, {f"hello {k[1:]}": got for k, got in answers.items()}
        hellos.greet()
        return hellos

    monkeypatch.setattr(handshake, "monotonic", lambda: clock.at)
    bus = SimpleNamespace(online=lambda: frozenset({NODE}), send=send, fetch=fetch)
    terms = SimpleNamespace(agreement="ab" * 32, federation=SimpleNamespace(silo=()))
    registry = SimpleNamespace(path=tmp_path / "roster.json", entries=[])
    hellos = Hellos(terms, "ab", registry, bus, audit=None)
    return SimpleNamespace(at=greet_at, sent=sent_messages)


@pytest.mark.parametrize("second", [TIMEOUT - 1, TIMEOUT + 1, LIFETIME - 1])
def test_an_answer_counts_as_long_as_the_message_lives(second, asking):
    asking.at(0.0)
    asking.at(TIMEOUT)
    assert asking.at(second, _1="north").nodes == {0: NODE}
    assert {message.seconds for message in asking.sent} == {LIFETIME}
    assert asking.at(second + 1).tickets == ()  # nobody is waited for, or asked, any more


def test_a_node_that_was_restarted_answers_the_second_hello(asking):
    asking.at(0.0)
    asking.at(1.0, _1=Undelivered(Reason.NODE_RESTARTED, "", retry=True))
    assert len(asking.sent) == 1
    asking.at(1.0 + RESTART)
    assert asking.at(2.0 + RESTART, _2="north").nodes == {0: NODE}


def test_a_node_that_ends_at_each_hello_is_asked_less_and_less_often(asking):
    """One without the memory for its data would read them again every few seconds."""
    for second in range(3600):
        asking.at(second, **{f"_{len(asking.sent)}": Undelivered(Reason.WORKER_ENDED, "", True)})
    # after 5, 10, 20, 40 and 80 s, and then every 120 s
    assert 30 < len(asking.sent) < 40


def test_a_silent_node_has_two_hellos_at_most(asking):
    for second in range(0, int(LIFETIME), 10):
        asking.at(second)
    assert len(asking.sent) == 2
    asking.at(LIFETIME)
    assert len(asking.sent) == 3


def test_a_lock_that_cannot_be_opened_is_the_servers_fault_not_a_members(tmp_path):
    (tmp_path / ".roster.lock").mkdir()  # no file to open
    with (
        pytest.raises(StorageError, match=r"\.roster\.lock"),
        untrusted(Reason.NOT_A_MEMBER),
        waiting_lock(tmp_path / ".roster.lock"),
    ):
        pytest.fail("it is not held")
