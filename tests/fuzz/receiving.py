"""Messages as the server receives them: with its real book, from a member that signs whatever it sends."""

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
from pomona.deploy import messages as deploy_messages
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.message_bus import Message
from pomona.deploy.messages import Answer, Greeting, Refusal, Task
from pomona.deploy.pki.signatures import Signer
from pomona.deploy.server.flower_transport import FlowerTransport
from pomona.deploy.server.member_registry import MemberRegistry
from pomona.deploy.silo.client_app import Silo
from pomona.methods.base import Rows

SILO, PLACE = "silo-1", 1


class Mailbox:
    """A post to one node, which answers at once."""

    def __init__(self, answer):
        self.answer, self.waiting, self.ids = answer, {}, count()

    def online(self):
        return frozenset({ROGUE})

    def send(self, node, parcel, seconds):
        ticket = str(next(self.ids))
        self.waiting[ticket] = self.answer(parcel)
        return ticket

    def fetch(self, tickets):
        return {t: self.waiting.pop(t) for t in tickets if t in self.waiting}


@contextmanager
def foreseen():
    """Let nothing be refused for a fault that nobody has thought of: such a one is logged."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("pomona")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
    assert not lines, lines[0]


class Counter:
    """A server whose only silo is silo-1, with its real book, and what that silo sends it."""

    def __init__(self, world, name):
        self.said, self.visits = world.said, world.visits
        self.anew = world.copy(world.federation.server, name)
        self.key = Signer(world.kit / "keys" / "silo.key")
        self.method = Silo(world.kit).method

    def courier(self, answer):
        """Behind a post that gives these answers, with a book of founders alone."""
        folder = self.anew()
        shutil.rmtree(folder / "run")
        run, federation = folder / "run", Federation.load(folder / "federation.toml")
        run.mkdir()
        book, audit = MemberRegistry(run, federation), Audit(run / "audit.jsonl")
        return FlowerTransport(federation, self.run, self.method.server, book, Mailbox(answer), audit, pause=0.0)

    @property
    def run(self):
        return json.loads(self.said["second"].asked.body)["run"]

    def greeting(self, asked):
        """The honest one."""
        body = json.loads(self.said["hello"].answered.body) | {"nonce": json.loads(asked.body)["nonce"]}
        return Message("greeting", json.dumps(body), self.key.sign("greeting", body))

    def signed(self, kind, record, data, enclosed=()):
        """A body with silo-1's signature on what of it can be read."""
        try:
            signature = self.key.sign(kind, deploy_messages.statement(deploy_messages.read(record, text(data))))
        except PomonaError:
            signature = ""
        return Message(kind, text(data), signature, dict(enclosed))

    def greets(self, answer):
        """How the server meets whoever answers so."""
        with foreseen():
            courier = self.courier(answer)
            courier.greet()
            courier.audit.close()
        assert courier.absent.keys() <= {SILO, f"node {ROGUE}"}
        assert (PLACE in courier.known) != bool(courier.absent)
        return "taken" if PLACE in courier.known else "absent"

    def visit(self, answer):
        """How a round of the server goes in which silo-1 alone is asked, and answers so."""
        visit, down = self.visits[1]
        visit = replace(visit, ids=(PLACE,))
        down = {key: Rows(rows.bank, rows.index[PLACE : PLACE + 1]) for key, rows in down.items()}
        with foreseen():
            courier = self.courier(lambda asked: self.greeting(asked) if asked.kind == "hello" else answer(asked))
            courier.greet()
            arrivals = courier.visit(visit, down)
            courier.audit.close()
        assert courier.absent.keys() <= {SILO}
        if any(a.unread for a in arrivals) or not arrivals:
            assert SILO in courier.refused or SILO in courier.absent
            return "absent"
        assert len(arrivals) == 1
        return "taken"


@target("greeting, received by the server", 80)
def greeting(world):
    server = Counter(world, "greeting")

    def act(data):
        def answer(asked):
            return server.signed(
                "greeting", Greeting, data.replace(b"@nonce", json.loads(asked.body)["nonce"].encode())
            )

        return server.greets(answer)

    known = json.loads(texts(world)[Greeting].data) | {"nonce": "@nonce"}
    return messages(Greeting, Valid(json.dumps(known).encode(), JSON)), act


@target("refusal of a hello, received by the server", 40)
def refusal(world):
    server = Counter(world, "refusal")
    return messages(Refusal, REFUSED), lambda data: server.greets(lambda _: server.signed("refused", Refusal, data))


@target("refusal of a task, received by the server", 40)
def refusal_of_a_task(world):
    server = Counter(world, "refusal-of-task")
    return messages(Refusal, REFUSED), lambda data: server.visit(lambda _: server.signed("refused", Refusal, data))


def honest(server):
    """The honest answer to what this server asks, and its uplink."""
    asked = []
    server.visit(lambda parcel: asked.append(parcel) or Message("refused", "", ""))
    said = server.said["second"].answered
    body = json.loads(said.body) | {"task": deploy_messages.read(Task, asked[0].body).digest}
    return body, said.enclosed["uplink"]


@target("answer, received by the server", 80)
def answer(world):
    server = Counter(world, "answer")
    body, uplink = honest(server)
    known = Valid(json.dumps(body).encode(), JSON)

    def act(data):
        return server.visit(lambda _: server.signed("answer", Answer, data, {"uplink": uplink}))

    assert act(known.data) == "taken"
    return messages(Answer, known), act


@target("uplink under the hash of its bytes, received by the server", 80)
def uplink(world):
    server = Counter(world, "uplink")
    body, sent = honest(server)

    def act(data):
        said = json.dumps(body | {"uplink": deploy_messages.name(data)}).encode()
        return server.visit(lambda _: server.signed("answer", Answer, said, {"uplink": data}))

    return inputs(Valid(sent)), act


@target("parcel of any kind and signature, received by the server", 60)
def parcel(world):
    server = Counter(world, "parcel")
    body, uplink = honest(server)

    def act(data):
        kind, signature, rest = (*data.split(b"|", 2), b"", b"")[:3]
        return server.visit(lambda _: Message(text(kind), json.dumps(body), text(signature), {text(rest): uplink}))

    kinds = st.sampled_from(["answer", "refused", "greeting", "hello", "task", "", "x"])
    return st.builds(
        lambda kind, sign, rest: f"{kind}|{sign}|{rest}".encode(errors="replace"), kinds, st.text(), st.text()
    ), act
