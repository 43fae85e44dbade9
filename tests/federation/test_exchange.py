"""A client's fault has its name once; what is sent is freed."""

import weakref
from dataclasses import replace

import pytest

import pomona
from pomona.federation.exchange import with_name
from pomona.methods.mixtures import fedamp
from problems import tiny


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("client 1, step 3: the loss is nan", "silo-1, step 3: the loss is nan"),
        ("client 1", "silo-1"),
        ("client 12 is another", "silo-1: client 12 is another"),
        ("silo-1: no rows", "silo-1: no rows"),
        ("silo-12 is another", "silo-1: silo-12 is another"),
        ("", "silo-1: "),
    ],
)
def test_a_fault_has_its_clients_name_once(fault, expected):
    assert with_name(fault, 1, "silo-1") == expected


def test_what_is_sent_is_freed_before_the_server_aggregates(monkeypatch):
    """It may be as large as the models of all clients."""
    sent, alive, server = [], [], fedamp.server

    def watched(*settings):
        inner = server(*settings)

        def downlink(*args):
            answer = inner.downlink(*args)
            sent.append(weakref.ref(answer["cloud"].bank))
            return answer

        def aggregate(*args):
            alive.append(sent[-1]() is not None)
            return inner.aggregate(*args)

        return replace(inner, downlink=downlink, aggregate=aggregate)

    monkeypatch.setattr(fedamp, "server", watched)
    pomona.run(tiny("fedamp", rounds=2))
    assert alive == [False, False]
