"""Messages as the server receives them, with its real registry, from a member that signs whatever
it sends.
"""

import json
import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from edits import JSON, Valid, inputs, messages
from hypothesis import strategies as st
from messages import REFUSED, text, texts
from targets import target
from worlds import ROGUE

from pomona.core.errors import PomonaError
from pomona.methods.base import Rows
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import Audit
from pomona_federation.keys import Signer
from pomona_federation.messages import message_bodies
from pomona_federation.messages.message_bodies import Answer, HelloReply, Refusal, Task
from pomona_federation.messages.message_bus import Message
from pomona_federation.messages.tensor_bytes import sha256
from pomona_federation.server.flower_transport import FlowerTransport
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.silo.silo_in_study import Silo

SILO, INDEX = "silo-1", 1


class Mailbox:
    """A message bus to one node that answers at once."""

    def __init__(self, answer):
        self.answer, self.waiting, self.ids = answer, {}, count()

    def online(self):
        return frozenset({ROGUE})

    def send(self, messages):
        tickets = [str(next(self.ids)) for _ in messages]
        self.waiting |= {
            ticket: self.answer(outgoing.message)
            for ticket, outgoing in zip(tickets, messages, strict=True)
        }
        return tickets

    def wait(self, seconds):
        """Return at once, as the answer is there."""

    def fetch(self, tickets):
        return {t: self.waiting.pop(t) for t in tickets if t in self.waiting}


@contextmanager
def foreseen():
    """Fail for refusals due to unforeseen faults, which are logged."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("pomona")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
    assert not lines, lines[0]


class Counter:
    """A server with its real registry whose only silo is silo-1, and that silo's messages."""

    def __init__(self, world, name):
        self.exchanges, self.visits = world.exchanges, world.visits
        self.anew = world.copy(world.federation.server, name)
        self.key = Signer(world.kit / "keys" / "silo.key")
        self.method = Silo(world.kit).method

    def transport(self, answer):
        """A transport with a bus that gives these answers, and a registry of founders only."""
        folder = self.anew()
        shutil.rmtree(folder / "run")
        run, federation = folder / "run", Federation.load(folder / "federation.toml")
        run.mkdir()
        registry, audit = MemberRegistry(run, federation), Audit(run / "audit.jsonl")
        return FlowerTransport(
            federation.kit_terms,
            registry.path.parent,
            self.run,
            self.method.server,
            registry,
            Mailbox(answer),
            audit,
            pause=0.0,
        )

    @property
    def run(self):
        return json.loads(self.exchanges["second"].request.body)["run"]

    def hello_reply(self, request):
        """An honest hello reply."""
        body = json.loads(self.exchanges["hello"].answer.body) | {
            "nonce": json.loads(request.body)["nonce"]
        }
        return Message("hello-reply", json.dumps(body), self.key.sign("hello-reply", body))

    def signed(self, kind, record, data, enclosed=()):
        """A body with silo-1's signature on its readable part."""
        try:
            signature = self.key.sign(kind, message_bodies.read(record, text(data)).statement)
        except PomonaError:
            signature = ""
        return Message(kind, text(data), signature, dict(enclosed))

    def greets(self, answer):
        """How the server treats a node that gives this answer."""
        with foreseen():
            transport = self.transport(answer)
            transport.greet()
            transport.audit.close()
        turned_away = transport.exchange.handshake.turned_away
        assert turned_away.keys() <= {SILO, f"node {ROGUE}"}
        assert (INDEX in transport.exchange.identified) != bool(turned_away)
        return "taken" if INDEX in transport.exchange.identified else "absent"

    def visit(self, answer):
        """A round of the server that asks only silo-1, which gives this answer."""
        visit, downlink = self.visits[1]
        visit = replace(visit, ids=(INDEX,))
        downlink = {
            key: Rows(rows.bank, rows.index[INDEX : INDEX + 1]) for key, rows in downlink.items()
        }
        with foreseen():
            transport = self.transport(
                lambda request: (
                    self.hello_reply(request)
                    if request.message_type == "hello"
                    else answer(request)
                )
            )
            transport.greet()
            arrivals = transport.visit(visit, downlink)
            transport.audit.close()
        assert transport.unused.keys() <= {SILO}
        if any(a.unread for a in arrivals) or not arrivals:
            assert SILO in transport.unused
            return "absent"
        assert len(arrivals) == 1
        return "taken"


@target("hello reply, received by the server", 7)
def hello_reply(world):
    server = Counter(world, "hello-reply")

    def act(data):
        def answer(request):
            return server.signed(
                "hello-reply",
                HelloReply,
                data.replace(b"@nonce", json.loads(request.body)["nonce"].encode()),
            )

        return server.greets(answer)

    body = json.loads(texts(world)[HelloReply].data) | {"nonce": "@nonce"}
    return messages(HelloReply, Valid(json.dumps(body).encode(), JSON)), act


@target("refusal of a hello, received by the server", 4)
def refusal(world):
    server = Counter(world, "refusal")
    return messages(Refusal, REFUSED), lambda data: server.greets(
        lambda _: server.signed("refusal", Refusal, data)
    )


@target("refusal of a task, received by the server", 4)
def refusal_of_a_task(world):
    server = Counter(world, "refusal-of-task")
    return messages(Refusal, REFUSED), lambda data: server.visit(
        lambda _: server.signed("refusal", Refusal, data)
    )


def honest(server):
    """The honest answer to the server's request, and its uplink."""
    requests = []
    server.visit(lambda message: requests.append(message) or Message("refusal", "", ""))
    reply = server.exchanges["second"].answer
    body = json.loads(reply.body) | {"task": message_bodies.read(Task, requests[0].body).digest}
    return body, reply.enclosed["uplink"]


@target("answer, received by the server", 7)
def answer(world):
    server = Counter(world, "answer")
    body, uplink = honest(server)
    valid = Valid(json.dumps(body).encode(), JSON)

    def act(data):
        return server.visit(lambda _: server.signed("answer", Answer, data, {"uplink": uplink}))

    assert act(valid.data) == "taken"
    return messages(Answer, valid), act


@target("uplink under the hash of its bytes, received by the server", 7)
def uplink(world):
    server = Counter(world, "uplink")
    body, valid = honest(server)

    def act(data):
        answer = json.dumps(body | {"uplink": sha256(data)}).encode()
        return server.visit(lambda _: server.signed("answer", Answer, answer, {"uplink": data}))

    return inputs(Valid(valid)), act


@target("message of any kind and signature, received by the server", 5)
def message(world):
    server = Counter(world, "message")
    body, uplink = honest(server)

    def act(data):
        kind, signature, name = (*data.split(b"|", 2), b"", b"")[:3]
        return server.visit(
            lambda _: Message(text(kind), json.dumps(body), text(signature), {text(name): uplink})
        )

    message_kinds = st.sampled_from(["answer", "refusal", "hello-reply", "hello", "task", "", "x"])
    return st.builds(
        lambda kind, sign, name: f"{kind}|{sign}|{name}".encode(errors="replace"),
        message_kinds,
        st.text(),
        st.text(),
    ), act
