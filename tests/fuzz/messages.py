"""Messages: every kind as text, as a silo of a real kit answers it, and as the server's book and post receive it."""

import json
import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import torch
from edits import JSON, Valid, damaged, inputs, messages
from hypothesis import strategies as st
from targets import TARGETS, Target, target
from worlds import ROGUE

from pomona.deploy import wire
from pomona.deploy.audit import Audit
from pomona.deploy.federation import Federation
from pomona.deploy.post import Parcel
from pomona.deploy.server.book import Book
from pomona.deploy.server.courier import Courier
from pomona.deploy.silo.tasks import Silo
from pomona.deploy.trust.signing import Signer
from pomona.deploy.wire import Answer, Greeting, Hello, Refused, Task
from pomona.errors import PomonaError
from pomona.methods.base import Rows

REFUSED = Valid(b'{"silo": "silo-1", "fault": "no"}', JSON)
SILO, PLACE = "silo-1", 1


def texts(world):
    """A valid body of each kind."""
    world.federation  # noqa: B018 - makes all that was said
    said = {
        Hello: world.said["hello"].asked, Greeting: world.said["hello"].answered, Task: world.said["second"].asked,
        Answer: world.said["second"].answered,
    }  # fmt: skip
    return {kind: Valid(parcel.body.encode(), JSON) for kind, parcel in said.items()} | {Refused: REFUSED}


def as_text(kind, world):
    def act(data):
        record = wire.read(kind, text(data))
        assert wire.read(kind, record.model_dump_json()) == record
        assert wire.statement(record)

    return messages(kind, texts(world)[kind]), act


TARGETS += [
    Target(f"{kind.__name__.lower()}, as text", 150, partial(as_text, kind))
    for kind in (Hello, Greeting, Task, Answer, Refused)
]


def text(data):
    """A body as Flower hands it over: any characters, whatever the bytes."""
    return data.decode(errors="replace")


# A silo.


def silo(world, name, state):
    """A copy of silo-1's kit whose state is put back before each question."""
    anew = world.copy(world.kit, name)
    kit = anew()
    one = Silo(kit)
    assert one.own

    def back():
        shutil.rmtree(kit / "state", ignore_errors=True)
        if state:
            shutil.copytree(state, kit / "state")
        return one

    return back


@target("hello, answered by a silo", 60)
def hello(world):
    back = silo(world, "greeted", None)
    return messages(Hello, texts(world)[Hello]), lambda data: back().greet(wire.read(Hello, text(data))) and None


@target("task of a round, answered by a silo", 60)
def task(world):
    return answered(world, "second", "first")


@target("task of the closing visit, answered by a silo", 40)
def closing(world):
    return answered(world, "closing", "second")


def answered(world, which, before):
    world.federation  # noqa: B018
    asked = world.said[which].asked
    back = silo(world, f"asked-{which}", world.said[before].state)

    def act(data):
        answer, uplink = back().answer(wire.read(Task, text(data)), asked.enclosed)
        assert wire.read(Answer, answer.model_dump_json()) == answer
        assert not uplink or wire.name(uplink) == answer.uplink
        return "asks for rows" if answer.missing else "taken"

    return messages(Task, Valid(asked.body.encode(), JSON)), act


@target("row of a task under its old name or its own, taken by a silo", 40)
def row(world):
    world.federation  # noqa: B018
    asked = world.said["second"].asked
    back = silo(world, "rowed", world.said["first"].state)
    name, data = sorted(asked.enclosed.items())[0]

    def act(said):
        sealed, changed = said[0] % 2, said[1:]
        new = wire.name(changed) if sealed else name
        others = {n: d for n, d in asked.enclosed.items() if n != name}
        back().answer(wire.read(Task, asked.body.replace(name, new)), {**others, new: changed})

    return st.builds(lambda own, kept: bytes([own]) + kept, st.integers(0, 1), damaged(Valid(data))), act


# The server.


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
        world.federation  # noqa: B018
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
        book, audit = Book(run, federation), Audit(run / "audit.jsonl")
        return Courier(federation, self.run, self.method.server, book, Mailbox(answer), audit, pause=0.0)

    @property
    def run(self):
        return json.loads(self.said["second"].asked.body)["run"]

    def greeting(self, asked):
        """The honest one."""
        body = json.loads(self.said["hello"].answered.body) | {"nonce": json.loads(asked.body)["nonce"]}
        return Parcel("greeting", json.dumps(body), self.key.sign("greeting", body))

    def signed(self, kind, record, data, enclosed=()):
        """A body with silo-1's signature on what of it can be read."""
        try:
            signature = self.key.sign(kind, wire.statement(wire.read(record, text(data))))
        except PomonaError:
            signature = ""
        return Parcel(kind, text(data), signature, dict(enclosed))

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
            replies = courier.visit(visit, down)
            courier.audit.close()
        assert courier.absent.keys() <= {SILO}
        if any(reply.unread for reply in replies) or not replies:
            assert SILO in courier.refused or SILO in courier.absent
            return "absent"
        (reply,) = replies
        assert all(torch.isfinite(t).all() or True for t in (reply.uplink or {}).values())
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
    return messages(Refused, REFUSED), lambda data: server.greets(lambda _: server.signed("refused", Refused, data))


@target("refusal of a task, received by the server", 40)
def refusal_of_a_task(world):
    server = Counter(world, "refusal-of-task")
    return messages(Refused, REFUSED), lambda data: server.visit(lambda _: server.signed("refused", Refused, data))


def honest(server):
    """The honest answer to what this server asks, and its uplink."""
    asked = []
    server.visit(lambda parcel: asked.append(parcel) or Parcel("refused", "", ""))
    said = server.said["second"].answered
    body = json.loads(said.body) | {"task": wire.read(Task, asked[0].body).digest}
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
        said = json.dumps(body | {"uplink": wire.name(data)}).encode()
        return server.visit(lambda _: server.signed("answer", Answer, said, {"uplink": data}))

    return inputs(Valid(sent)), act


@target("parcel of any kind and signature, received by the server", 60)
def parcel(world):
    server = Counter(world, "parcel")
    body, uplink = honest(server)

    def act(data):
        kind, signature, rest = (*data.split(b"|", 2), b"", b"")[:3]
        return server.visit(lambda _: Parcel(text(kind), json.dumps(body), text(signature), {text(rest): uplink}))

    kinds = st.sampled_from(["answer", "refused", "greeting", "hello", "task", "", "x"])
    return st.builds(
        lambda kind, sign, rest: f"{kind}|{sign}|{rest}".encode(errors="replace"), kinds, st.text(), st.text()
    ), act


# Bytes of tensors.


@target("uplink, unsealed", 200)
def unseal(world):
    world.federation  # noqa: B018
    sent, expects = world.said["second"].answered.enclosed["uplink"], world.visits[1][0].expects
    return inputs(Valid(sent)), lambda data: wire.unseal(data, expects, "fp32", 5) and None


@target("row, unpacked", 200)
def unpack(world):
    forms = [wire.Offer(many=False, index=(0,), dtype=d, width=3, rows={}) for d in ("BOOL", "F32", "F64", "I64")]

    def act(data):
        for form in forms:
            try:
                assert torch.isfinite(wire.unpack(data, form, "fp32", 5)).all()
            except PomonaError as fault:
                refused = fault
        raise refused

    return st.binary(max_size=24), act
