"""Hostile members: the server names them and continues without them, and its record stays
readable.
"""

import itertools
import json
import re
import threading
from dataclasses import replace

import pytest
import torch

from federation_in_process import APPLE, audited, deployed, equal
from pomona.record.run_folder import load
from pomona.record.run_summary import summarise
from pomona.results import table
from pomona.storage import checkpoint
from pomona.storage.run_status import FOLDER, committed, read_status
from pomona_federation import flower_apps
from pomona_federation.keys import Signer
from pomona_federation.messages.tensor_bytes import Encoding
from pomona_federation.silo import client_app
from pomona_federation.silo.task_policy import TaskPolicy
from pomona_federation.status import server
from representatives import drawn

pytestmark = pytest.mark.long


def reasons(federation):
    """All notes in the server's audit log."""
    return " | ".join(e["text"] for e in audited(federation.server / "run", "note"))


BAD = {(2, 1)}  # silo-1 in round 2
ROGUE = 11  # its node


def forged(federation, change, kind="answer", number=2, signer="silo-1"):
    """Make silo-1 change and sign its message: the whole text of a hello reply, or of its answer in
    a round.
    """
    key = Signer(federation.kits / signer / "keys" / "silo.key")

    def fault(message, reply):
        unpacked = flower_apps.unpacked(reply.content)
        record = json.loads(unpacked.body)
        if (message.metadata.dst_node_id, unpacked.message_type) != (ROGUE, kind) or record.get(
            "number", number
        ) != number:
            return reply
        body = change(record)
        signature = "" if isinstance(body, str) else key.sign(kind, body)
        text = body if isinstance(body, str) else json.dumps(body)
        return type(reply)(
            flower_apps.packed(replace(unpacked, body=text, signature=signature)), reply_to=message
        )

    federation.grid.faults.append(fault)


def tickets_of_round_2(grid):
    """A list that collects the message ids of round 2's tasks for silo-1."""
    tickets = []

    def note(message, reply):
        unpacked = flower_apps.unpacked(message.content)
        if message.metadata.dst_node_id == ROGUE and json.loads(unpacked.body).get("number") == 2:
            tickets.append(message.metadata.message_id)
        return reply

    grid.faults.append(note)
    return tickets


def figure(**changes):
    """A change of an answer's first figure."""
    return lambda body: {**body, "scores": [{**body["scores"][0], **changes}, *body["scores"][1:]]}


ANSWERS = {
    "a signature of 1,000 characters on its row": lambda body: {
        **body,
        "rows": {"core": "ab" * 500},
    },
    "the hash of another study": lambda body: {**body, "agreement": "ab" * 32},
    "10**400 test samples": figure(samples=10**400),
    "a loss of 1e308": figure(loss=1e308),
    "a training loss of -1e308": lambda body: {**body, "loss": -1e308},
    "a metric of 1e308": figure(value=1e308),
    "a value that no accuracy can be": figure(value=1.5),
    "an interval from its upper end to its lower": figure(interval=[0.9, 0.1]),
    "a model that nobody has": figure(model="mine"),
    "a moment that was not asked for": figure(when="received"),
    "the same figure twice": lambda body: {**body, "scores": body["scores"] + body["scores"][:1]},
    "samples without a loss": figure(loss=None),
    "an accuracy on nothing": figure(samples=0, loss=None),
    "an infinite time": lambda body: json.dumps(body).replace(
        '"seconds": ', '"seconds": 1e999, "x": '
    ),
    "lists in lists": lambda _: "[" * 100_000,
    "ten million bytes": lambda body: json.dumps({**body, "fault": "x" * 10_000_000}),
}


@pytest.mark.parametrize("case", drawn(ANSWERS, 3))
def test_what_a_member_answers_costs_it_the_round_and_nobody_else(case, world):
    federation = world.federation(run={"eval_every": 2})
    forged(federation, ANSWERS[case])
    federation.run()
    assert [e["silo"] for e in audited(federation.server / "run", "unused")] == ["silo-1"]
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))
    record = load(federation.server / "run")
    assert summarise(record, 1.0)["rounds"] == 3
    assert table([record])


def test_a_fault_that_nobody_has_foreseen_is_the_members_too(world):
    """Whatever reading an uplink raises: the member is absent, its text is told to nobody, and the
    run goes on.
    """
    federation, unseal, uplinks = world.federation(), Encoding.unpack_uplink, []

    def unsealed(encoding, data, entries):
        uplinks.append(data)
        if len(uplinks) == 5:  # three silos a round: silo-1's in round 2
            raise RecursionError("\x1b]0;patient 17\x07")
        return unseal(encoding, data, entries)

    world.patch.setattr(Encoding, "unpack_uplink", unsealed)
    federation.run()
    (refused,) = audited(federation.server / "run", "unused")
    assert (refused["silo"], refused["round"]) == ("silo-1", 2)
    assert "RecursionError" in refused["detail"]
    assert "patient" not in refused["detail"]
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_reply_that_flower_cannot_read_costs_nobody_elses(world):
    federation = world.federation()
    grid, pull = federation.grid, federation.grid.pull_messages
    tickets = tickets_of_round_2(grid)

    def pulled(ids):
        if set(ids) & set(tickets):
            raise KeyError("an object of a class that there is not")
        return pull(ids)

    world.patch.setattr(grid, "pull_messages", pulled)
    federation.run()
    assert tickets
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_reply_that_comes_drop_by_drop_holds_nobody_up(world):
    """Its sender has begun to push it and does not go on: the round ends at its deadline, without
    that silo.
    """
    federation, never = world.federation(run={"rounds": 4}, deadline=2.0), threading.Event()
    grid, pull = federation.grid, federation.grid.pull_messages
    tickets = tickets_of_round_2(grid)

    def pulled(ids):
        return never.wait() if set(ids) & set(tickets) else pull(ids)

    world.patch.setattr(grid, "pull_messages", pulled)
    federation.run()
    never.set()
    assert tickets
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


@pytest.mark.parametrize("samples", drawn([10**400, 10**15, -1, 1e3, "60"]))
def test_a_greeting_that_counts_out_of_all_proportion_gets_no_place(samples, world):
    """Neither the registry nor any later round meets the number; without it, the federation is that
    of the others.
    """
    federation = world.federation(quorum=2, wait=0.5)
    forged(federation, lambda reply: {**reply, "samples": samples}, "hello-reply")
    federation.run()
    unused = audited(federation.server / "run", "unused")
    assert {e["silo"] for e in unused} == {"node 11", "silo-1"}
    assert all(r.cohort == (0, 2) for r in load(federation.server / "run").rounds)
    entries = json.loads((federation.server / "run" / "roster.json").read_text())["silos"]
    assert entries[1]["size"] is None


def test_one_claim_does_not_take_the_mean_over(world):
    """FedAvg, one round: silo-1 claims ten million samples, in its hello reply and its answer, and
    weighs one half.
    """
    federation = world.federation("fedavg", run={"rounds": 1})
    # a liar does not refuse to be counted so
    world.patch.setattr(TaskPolicy, "_require_own", lambda *_: None)
    for kind in ("hello-reply", "answer"):
        forged(federation, lambda record: {**record, "samples": 10**7}, kind, number=1)
    unseal, uplinks = Encoding.unpack_uplink, []
    world.patch.setattr(
        Encoding, "unpack_uplink", lambda *args: uplinks.append(unseal(*args)) or uplinks[-1]
    )
    federation.run()
    entries = json.loads((federation.server / "run" / "roster.json").read_text())["silos"]
    n = torch.tensor(
        [entries[0]["size"], entries[0]["size"] + entries[2]["size"], entries[2]["size"]]
    ).double()
    mean = (n / n.sum()).float() @ torch.stack([uplink["model"] for uplink in uplinks])
    ((_, path),) = committed(federation.server / "run" / FOLDER)
    (server_row,) = [t for k, t in checkpoint.read(path).tensors.items() if k.startswith("server")]
    assert torch.allclose(server_row, mean, atol=1e-6)
    assert "silo-1 claims 10000000 training samples" in reasons(federation)
    status = server(federation.server)
    assert [row["weight"] for row in status["silos"]] == pytest.approx((n / n.sum()).tolist())
    assert "it counts for 50 % (largest_share = 0.5)" in status["notes"][0]


@pytest.mark.parametrize(
    ("method", "name", "value", "reason"),
    [
        (
            "q-fedavg",
            "risk",
            1e7,  # admission refuses ten times that
            r"silo-1, round 1: risk 1e\+07, by which it has 100 % of the mean; it counts for 50 %",
        ),
        (
            "fednova",
            "steps",
            1e-3,
            r"silo-1, round 1: steps 0\.001, and its samples make (\d+) to \1; it counts by those",
        ),
        (
            "fednova",
            "steps",
            300.0,
            r"silo-1, round 1: steps 300, and its samples make (\d+) to \1; it counts by those",
        ),
    ],
)
def test_a_number_beside_a_model_does_not_take_the_mean_over(method, name, value, reason, world):
    """One round: the silo is named in the audit log, and nobody is refused."""
    federation = world.federation(method, run={"rounds": 1, "largest_share": 0.5})
    unseal, count = Encoding.unpack_uplink, itertools.count()

    def lied(*args):
        entry = unseal(*args)
        return {**entry, name: torch.full_like(entry[name], value)} if next(count) == 1 else entry

    world.patch.setattr(Encoding, "unpack_uplink", lied)
    federation.run()
    assert re.search(reason, reasons(federation))
    (row,) = load(federation.server / "run").rounds
    assert (row.cohort, row.refused) == ((0, 1, 2), ())


def test_a_share_of_more_than_a_half_is_said_where_none_is_cut(world):
    federation = world.federation("fedavg", run={"rounds": 1, "largest_share": 1.0})
    for kind in ("hello-reply", "answer"):
        forged(federation, lambda record: {**record, "samples": 10**7}, kind, number=1)
    federation.run()
    assert "counts for more than all others together" in reasons(federation)
    assert server(federation.server)["silos"][1]["weight"] > 0.999


SIGNATURES = {
    "garbage hex": lambda body: {**body, "rows": dict.fromkeys(body["rows"], "zz")},
    "missing": lambda body: {**body, "rows": {}},
    "even, but nobody's": lambda body: {**body, "rows": dict.fromkeys(body["rows"], "00" * 100)},
}
PASSED_ON = {"apple": APPLE, "fedfomo": {"name": "fedfomo"}, "mocha": {"name": "mocha"}}


@pytest.mark.parametrize(
    ("method", "case"),
    [*(("apple", what) for what in SIGNATURES), ("fedfomo", "garbage hex"), ("mocha", "missing")],
)
def test_a_row_that_receivers_would_refuse_is_never_passed_on(method, case, world):
    federation = world.federation(PASSED_ON[method], quorum=2)
    forged(federation, SIGNATURES[case])
    federation.run()
    refused = audited(federation.server / "run", "unused")
    assert [(e["silo"], e["round"]) for e in refused] == [("silo-1", 2)]
    assert (
        "which others would get" in refused[0]["detail"] or "cannot be read" in refused[0]["detail"]
    )
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


@pytest.mark.parametrize("lie", ["another silo's key", "another agreement"])
def test_a_row_signed_for_something_else_is_not_passed_on(lie, world):
    """The answer is silo-1's and well signed; the row in it carries silo-0's word, or is for
    another agreement.
    """
    federation, real_signatures = world.federation(quorum=2), client_app.ClientApp._signatures
    signer = Signer(
        federation.kits / ("silo-0" if "key" in lie else "silo-1") / "keys" / "silo.key"
    )
    agreement = "0" * 64 if "agreement" in lie else None

    def signatures(self, task, uplink):
        if (self.silo.file.name, task.number) != ("silo-1", 2):
            return real_signatures(self, task, uplink)
        changed = task.model_copy(update={"agreement": agreement} if agreement else {})
        with pytest.MonkeyPatch.context() as inner:
            inner.setitem(self.silo.__dict__, "signer", signer)
            return real_signatures(self, changed, uplink)

    world.patch.setattr(client_app.ClientApp, "_signatures", signatures)
    if agreement:
        forged(federation, lambda body: {**body, "agreement": agreement})
    federation.run()
    refused = audited(federation.server / "run", "unused")
    assert [(e["silo"], e["round"]) for e in refused] == [("silo-1", 2)]
    assert "which others would get" in refused[0]["detail"]
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_refusal_is_booked_under_a_name_only_if_its_key_has_signed(world):
    """At the hello silo-1 refuses in the name of silo-0, which takes part all the same."""
    federation = world.federation(quorum=2, wait=0.5)
    body = json.dumps({"silo": "silo-0", "fault": "no\n[/red] \x1b]0;owned\x07 thanks"})

    def refuses(message, reply):
        if message.metadata.dst_node_id == ROGUE:
            return type(reply)(
                flower_apps.packed(flower_apps.Message("refusal", body, "ab")), reply_to=message
            )
        return reply

    federation.grid.faults.append(refuses)
    federation.run()
    refused = audited(federation.server / "run", "unused")
    reasons_by_silo = {(e["silo"], e["reason"]) for e in refused}
    assert reasons_by_silo == {("node 11", "not-a-member"), ("silo-1", "not-connected")}
    details = [e["detail"] for e in refused if e["silo"] == "node 11"]
    assert details
    assert all("silo-0, which did not sign it" in line and line.isprintable() for line in details)
    assert all(r.cohort == (0, 2) for r in load(federation.server / "run").rounds)


def test_a_server_that_a_member_has_brought_down_goes_on(world):
    """With a quorum of all, each round with the member fails; once it behaves, the run goes on
    where it was.
    """
    federation = world.federation(quorum=3)
    forged(federation, SIGNATURES["missing"])
    with pytest.raises(Exception, match="2 uplinks of round 2 can be used, but 3 are needed"):
        federation.run()
    assert read_status(federation.server / "run").code == 7
    federation.grid.faults.clear()
    federation.grid.faults.append(lambda message, reply: reply)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
