"""Secure aggregation over an in-process grid: the simulation's models bit by bit, and what a server
cannot get.
"""

import json

import numpy as np
import pytest
import torch

from federation_in_process import deployed, equal, lost, settings
from pomona.core.errors import ConfigError, ProtocolError, QuorumError
from pomona.core.fixed_point import decoded, error
from pomona.core.round import Roster
from pomona.core.training_settings import SecureAggregation
from pomona.federation.round_plan import round_of
from pomona.federation.secure_sum import excess
from pomona.methods import METHODS
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from pomona_federation import flower_apps
from pomona_federation.agreement import Federation as Agreed
from pomona_federation.audit_log import complete_lines
from pomona_federation.messages.message_bodies import MaskKey, SumRequest, mask_statement, read
from pomona_federation.messages.tensor_bytes import sha256
from pomona_federation.silo.client_app import ClientApp
from pomona_federation.silo.outgoing_filter import texts
from pomona_federation.silo.preflight import run as checked
from pomona_federation.silo.privacy_budget import overview
from pomona_federation.silo.silo_in_study import Silo
from representatives import drawn
from test_hostile_server import WIDTH, Server, noise, packed

pytestmark = pytest.mark.long

SUMS = [n for n, kind in METHODS.items() if kind().method().server.sums and n != "fedavg-data"]
LORA = {"ffa-lora", "fedsa-lora", "feddpa"}  # for networks with adapters alone
TERMS = {"max_norm": 20.0, "minimum": 2}
RUN = {"run": {"secure_aggregation": TERMS}}


def events(federation, name):
    lines = list(complete_lines(federation.server / "run" / "audit.jsonl"))
    return [line for line in lines if line["event"] == name]


@pytest.mark.parametrize("method", ["fedavg", *drawn(SUMS, 1)])
def test_deployed_models_are_those_of_the_simulation_and_every_answer_is_masked(method, world):
    federation, replies = world.federation({"name": method}, **RUN), []

    def record(message, reply):
        body = flower_apps.unpacked(message.content)
        replies.append((body.message_type, flower_apps.unpacked(reply.content)))
        return reply

    federation.grid.faults.append(record)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert [e["silos"] for e in events(federation, "sum")] == [federation.names] * 3
    silo_lines = list(complete_lines(federation.kits / "silo-0" / "state" / "audit.jsonl"))
    assert [e["silos"] for e in silo_lines if e["event"] == "sum"] == [federation.names] * 3
    assert not any(reply.enclosed for kind, reply in replies if kind == "task")
    for reply in (r for kind, r in replies if kind == "sum-request"):
        highest = np.frombuffer(bytes(reply.enclosed["uplink"]), np.uint32) >> 24
        # a change alone has small integers, whose highest byte is 0 or, below zero, 255
        assert np.isin(highest, (0, 255)).mean() < 0.5


SUMMED = {
    "largest_share": 1.0,
    "local_steps": 1,
    "batch_size": 300,
    "secure_aggregation": {"max_norm": 20.0, "minimum": 3},
}
NOISED = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "delta": 1e-3,
    "honest": 2,
    "acknowledge": ["metrics", "sample-counts", "unlimited-epsilon", "noise-of-others"],
}


def test_with_noise_that_adds_up_deployed_models_and_ledgers_are_the_simulations(world):
    run = {**SUMMED, "privacy": {**NOISED, "seed": 1}}
    federation = world.federation("fedavg", run=run, insecure=True)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    for name in federation.names:
        (ledger,) = (federation.kits / name / "state" / "private" / "dp").glob("*/ledger.jsonl")
        assert ledger.read_text().count('"honest": 2') == 3
        assert "of which up to 1 may be with them" in overview(federation.kits / name)[0]["against"]
    scores = (federation.server / "run" / "events.jsonl").read_text()
    assert '"received"' in scores
    assert '"local"' not in scores


def test_a_silo_check_has_both_figures(world):
    pytest.importorskip("opacus")
    federation = world.federation("fedavg", run={**SUMMED, "privacy": NOISED})
    _, leaves, _ = checked(federation.kits / "silo-0")
    scenario = Scenario.prepare(federation.simulation)
    assert f"{epsilons(scenario)[0]:.3g} at" in leaves["epsilon"]
    assert "of which up to 1 may be with them" in leaves["epsilon"]
    assert f"{epsilons(scenario, own_noise_only=True)[0]:.3g} at" in leaves["alone"]
    assert "clipped" not in leaves["sum"]
    filled = {key for key, value in leaves.items() if value is not None} - {"every_round"}
    assert len(list(texts(leaves))) == len(filled)


def test_a_federation_refuses_what_a_simulation_refuses_of_noise_in_sums(world):
    with pytest.raises(ConfigError, match="set largest_share = 1"):
        world.federation("fedavg", run={**SUMMED, "largest_share": 0.5, "privacy": NOISED})


@pytest.mark.slow
@pytest.mark.parametrize("clients", [4, 50])
def test_so_are_those_of_more_silos(clients, world):
    rows = {"data": {"name": "digits", "train_limit": 1400, "test_limit": 200}}
    federation = world.federation("fedavg", run={**RUN["run"], **rows, "clients": clients})
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert [len(e["silos"]) for e in events(federation, "sum")] == [clients] * 3


def on_answer(kind, number=2, node=11):
    """Lose a silo's answers to messages of a kind in a round."""

    def fault(message, reply):
        unpacked = flower_apps.unpacked(message.content)
        if unpacked.message_type == kind and message.metadata.dst_node_id == node:
            body = json.loads(unpacked.body)
            task = body.get("task", body) if kind == "sum-request" else body
            if task["number"] == number and task["trains"]:
                return lost(message, 8)
        return reply

    return fault


def test_a_silo_that_is_gone_before_the_sum_is_left_out_of_it_at_no_cost(world):
    """The mean of the rest, and no silo masks twice in the round."""
    federation = world.federation("fedavg", **RUN)
    federation.grid.faults.append(on_answer("task"))
    federation.run()
    assert equal(deployed(federation), world.simulated(federation, absent={(2, 1)}))
    remaining = [n for n in federation.names if n != "silo-1"]
    assert [e["silos"] for e in events(federation, "sum")][1] == remaining


def test_a_silo_that_is_gone_after_it_is_waited_for_and_the_run_resumes_to_the_same_bits(world):
    federation = world.federation("fedavg", **RUN)
    federation.grid.faults.append(on_answer("sum-request"))
    with pytest.raises(QuorumError, match="no uplink of round 2"):
        federation.run()
    federation.grid.faults[:] = [on_answer("task")]
    with pytest.raises(QuorumError):  # others have masked for a sum with it, and for no other
        federation.run()
    reasons = {(e["round"], e["reason"]) for e in events(federation, "unused")}
    assert {(2, "sum-missing"), (2, "sum-short")} <= reasons
    federation.grid.faults.clear()
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert [e["silos"] for e in events(federation, "sum")] == [federation.names] * 3


def test_too_few_silos_for_a_sum_fail_the_round_before_anything_is_masked(world):
    terms = {**TERMS, "minimum": 3}
    federation = world.federation("fedavg", run={"secure_aggregation": terms})
    federation.grid.faults.append(on_answer("task"))
    with pytest.raises(QuorumError, match="3 are needed"):
        federation.run()
    federation.grid.faults.clear()
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def misbehaving(patch, name, change):
    """Make silo-1 answer round 2 otherwise: to its task, or with its part."""
    original = getattr(ClientApp, name)

    def does(self, request, *enclosed):
        answer, uplink = original(self, request, *enclosed)
        misbehaves = self.silo.file.name == "silo-1" and request.number == 2
        return change(self, answer, uplink) if misbehaves else (answer, uplink)

    patch.setattr(ClientApp, name, does)


def test_a_silo_whose_part_is_no_part_of_the_sum_spoils_the_round_and_is_not_hidden(world):
    """Nobody can tell whose it is: the round fails, is tried once more, and nothing is averaged."""
    federation = world.federation("fedavg", **RUN)

    def unclipped(_, answer, uplink):
        uplink = (np.frombuffer(uplink, np.uint32) + np.uint32(2**28)).tobytes()
        return answer.model_copy(update={"uplink": sha256(uplink)}), uplink

    misbehaving(world.patch, "masked_part", unclipped)
    with pytest.raises(QuorumError):
        federation.run()
    reasons = {(e["reason"], "did not clip" in e["detail"]) for e in events(federation, "unused")}
    assert reasons == {("sum-range", True)}


def without_key(_, answer, uplink):
    return answer.model_copy(update={"mask": None}), uplink


def with_unsigned_key(_, answer, uplink):
    mask = answer.mask and answer.mask.model_copy(update={"key": "09" + "00" * 31})
    return answer.model_copy(update={"mask": mask}), uplink


def with_key_of_small_order(app, answer, uplink):
    """As the silo signs it: no other silo can mask with it, and a settled sum waits for ever."""
    key = "00" * 32
    text = mask_statement(answer, answer.silo, key)  # it has the task's agreement, run and number
    mask = MaskKey(key=key, signature=app.silo.signer.sign("mask", text))
    return answer.model_copy(update={"mask": answer.mask and mask}), uplink


def of_more_samples(_, answer, uplink):
    return answer.model_copy(update={"samples": answer.samples + 1}), uplink


SPOILT = [
    (without_key, "without a key"),
    (with_unsigned_key, "signature is not silo-1's"),
    (with_key_of_small_order, "for the sum is not a usable"),
    (of_more_samples, "other sample counts"),
]


@pytest.mark.parametrize(("change", "detail"), drawn(SPOILT))
def test_a_member_that_would_spoil_the_sum_is_left_out_of_it(change, detail, world):
    federation = world.federation("fedavg", **RUN)
    misbehaving(world.patch, "answer", change)
    federation.run()
    assert detail in " ".join(e["detail"] for e in events(federation, "unused"))
    remaining = [n for n in federation.names if n != "silo-1"]
    assert [e["silos"] for e in events(federation, "sum")][1] == remaining
    world.patch.undo()
    assert equal(deployed(federation), world.simulated(federation, absent={(2, 1)}))


def test_a_member_that_repeats_anothers_key_is_left_out_of_the_sum_and_named(world):
    """As one that is with the server could: the others' parts would be refused by all."""
    federation, keys = world.federation("fedavg", **RUN), {}

    def of_silo_0(app, answer, uplink):
        mask = MaskKey(
            key=keys[2],
            signature=app.silo.signer.sign("mask", mask_statement(answer, answer.silo, keys[2])),
        )
        return answer.model_copy(update={"mask": answer.mask and mask}), uplink

    misbehaving(world.patch, "answer", of_silo_0)
    answer = ClientApp.answer

    def noted(app, task, *enclosed):
        reply = answer(app, task, *enclosed)
        if app.silo.file.name == "silo-0" and reply[0].mask:
            keys[task.number] = reply[0].mask.key
        return reply

    world.patch.setattr(ClientApp, "answer", noted)
    federation.run()
    (unused,) = events(federation, "unused")
    assert (unused["silo"], unused["round"], unused["reason"]) == ("silo-1", 2, "sum-key")
    assert "the same key as silo-0" in unused["detail"]
    world.patch.undo()
    assert equal(deployed(federation), world.simulated(federation, absent={(2, 1)}))


def shorter(_, answer, uplink):
    return answer.model_copy(update={"uplink": sha256(uplink[:-4])}), uplink[:-4]


def changed_on_the_way(_, answer, uplink):
    return answer, uplink[:-1] + b"?"


UNUSABLE = [(shorter, "a part of"), (changed_on_the_way, "not the one that was signed")]


@pytest.mark.parametrize(("change", "detail"), drawn(UNUSABLE))
def test_a_member_whose_part_cannot_be_used_stops_the_round_and_is_named(change, detail, world):
    federation = world.federation("fedavg", **RUN)
    misbehaving(world.patch, "masked_part", change)
    with pytest.raises(QuorumError):
        federation.run()
    unused = [e for e in events(federation, "unused") if detail in e["detail"]]
    assert {e["silo"] for e in unused} == {"silo-1"}


# A hostile server.


class Summing(Server):
    """An attacker in the server's place that has tasks done and asks for sums."""

    def trained(self, number=1, rows=None, **fields):
        """The tasks of a round, done by all silos, and the silos' keys by place."""
        tasks, keys = {}, {}
        for member, name in enumerate(self.federation.names):
            row = (rows or {}).get(name)
            tasks[name], enclosed = self.task(number, row=row, silo=name, **fields)
            answer, uplink = self.ask(tasks[name], enclosed, silo=name)
            assert not uplink
            keys[member] = answer.mask
        return tasks, keys

    def part(self, task, keys, silo):
        return ClientApp(Silo(self.kit(silo))).masked_part(SumRequest(task=task, keys=keys))

    def total(self, tasks, keys):
        vectors = [
            self.part(tasks[self.federation.names[i]], keys, self.federation.names[i]) for i in keys
        ]
        return np.sum([np.frombuffer(u, np.uint32) for _, u in vectors], axis=0, dtype=np.uint32)


@pytest.fixture
def server(world):
    kits = world.federation("fedavg", run={"rounds": 3, "secure_aggregation": TERMS}, places=7)
    return Summing(kits)


def test_a_silo_masks_for_one_sum_a_round_whatever_the_server_says_of_the_others(server):
    """Two sums of the same models over rosters that differ by one silo differ by its model."""
    tasks, keys = server.trained()
    first = server.part(tasks["silo-0"], keys, "silo-0")
    assert server.part(tasks["silo-0"], keys, "silo-0") == first  # again, as after a kill
    fewer = {member: key for member, key in keys.items() if member != 2}
    with pytest.raises(ProtocolError, match="over other silos"):
        server.part(tasks["silo-0"], fewer, "silo-0")
    later, later_keys = server.trained(number=2)
    assert server.part(tasks["silo-0"], keys, "silo-0") == first  # a server that lost a checkpoint
    server.part(later["silo-0"], later_keys, "silo-0")
    with pytest.raises(ProtocolError, match="round 1 is to be summed"):
        server.part(tasks["silo-0"], keys, "silo-0")


def test_a_silo_refuses_a_sum_in_which_one_silo_has_anothers_key(server):
    """The server with silo-2, which signs silo-0's key: the masks of both, one added and one taken,
    would cancel in silo-1's part.
    """
    tasks, keys = server.trained()
    key = keys[0].key
    signer = Silo(server.kit("silo-2")).signer
    statement = mask_statement(tasks["silo-2"], "silo-2", key)
    keys[2] = MaskKey(key=key, signature=signer.sign("mask", statement))
    with pytest.raises(ProtocolError, match="silo-2 has the same key for the sum as silo-0"):
        server.part(tasks["silo-1"], keys, "silo-1")


def test_silos_that_were_sent_different_models_have_masks_that_do_not_cancel(server):
    """A model for one silo alone, by which the others' changes vanish, isolates its change."""
    terms = SecureAggregation(**TERMS)
    tasks, keys = server.trained()
    assert not excess(server.total(tasks, keys), 3, terms)
    tasks, keys = server.trained(number=2, rows={"silo-1": noise(1)})
    assert excess(server.total(tasks, keys), 3, terms)


@pytest.mark.parametrize("shared", [True, False])
def test_a_loss_says_which_share_of_a_silos_samples_is_of_a_class_unless_scores_stay(shared, world):
    """At a model of the server's choice, which all silos get: class 3 alone has a loss, of 1e6."""
    federation = world.federation("fedavg", run=RUN["run"], places=7, share_scores=shared)
    server, row = Summing(federation), torch.zeros(WIDTH)
    row[WIDTH - 10 + 3] = -1e6
    answer, _ = server.ask(*server.task(row=row))
    local = Silo(server.kit()).local
    labels = local.dataset.y[local.partition.clients[0].train]
    assert answer.mask
    assert answer.loss == (pytest.approx(1e6 * (labels == 3).mean(), rel=0.01) if shared else None)


def test_no_silo_takes_a_starting_model_of_its_own(server):
    """One that is dead for all silos but one isolates its change where clients keep a part."""
    task, enclosed = server.task()
    row, common = packed(noise(3), server.places), next(iter(enclosed))
    enclosed[sha256(row)] = row
    with pytest.raises(ProtocolError, match="for this silo alone"):
        server.ask(task.model_copy(update={"start": sha256(row)}), enclosed)
    del enclosed[sha256(row)]
    answer, _ = server.ask(task.model_copy(update={"start": common}), enclosed)
    assert answer.mask


def test_newcomers_start_from_the_initial_model_or_what_all_receive():
    """So that a silo may refuse any other."""
    scenario = Scenario.prepare(settings(method="fedavg"))
    roster, round_ = Roster((5, 5, 5)), round_of(scenario.config, 2)
    for method in sorted(set(SUMS) - LORA):
        server = METHODS[method]().method().server
        state = server.start(scenario.initial, roster, 0)
        _, row = server.add_clients(state, (2,), roster.only((0, 1)))
        received = server.downlink(state, (2,), roster, round_)["model"]
        assert row is None or torch.equal(row, received.bank[received.index[0]]), method


def test_what_is_summed_is_the_weighted_mean_of_the_changes(server):
    """Against silos that are asked alone in plain federations: the same rows, seed and round."""
    terms = SecureAggregation(**TERMS)
    tasks, keys = server.trained()
    change = decoded(server.total(tasks, keys), terms)
    changes = [
        np.frombuffer(ClientApp(Silo(server.kit(n)))._rounds.answered(tasks[n])[1], np.float32)
        for n in server.federation.names
    ]
    sizes = np.array(server.sizes, float)
    mean = np.einsum("n,nd->d", np.minimum(sizes / sizes.sum(), 0.5), np.array(changes, float))
    if (sizes / sizes.sum()).max() <= 0.5:  # the share is not limited
        assert np.abs(change - mean).max() <= error(terms, 3)
    assert len(change) == WIDTH
    assert np.abs(change).max() > 1e-4


def forged(keys, member, **fields):
    return {**keys, member: keys[member].model_copy(update=fields)}


INVALID_KEYS = {
    "another's key": (
        lambda k: forged(k, 2, key=k[1].key),
        "not signed by silo-2|silo-2 has the same key for the sum as silo-1",
    ),
    "the server's own key": (
        lambda k: forged(k, 2, key="09" + "00" * 31),
        "not signed by silo-2|silo-2 has the same key for the sum as silo-1",
    ),
    "no signature": (
        lambda k: forged(k, 2, signature=""),
        "not signed by silo-2|silo-2 has the same key for the sum as silo-1",
    ),
    "a place without a member": (lambda k: {**k, 5: k[2]}, "place 5, which has no member"),
    "not this silo's": (lambda k: forged(k, 0, key=k[1].key), "without this silo's key"),
    "without this silo": (lambda k: {i: k[i] for i in (1, 2)}, "without this silo's key"),
}


def test_a_sum_with_keys_that_are_not_the_silos_is_refused_before_it_counts(server):
    tasks, keys = server.trained()
    for change, message in INVALID_KEYS.values():
        with pytest.raises(ProtocolError, match=message):
            server.part(tasks["silo-0"], change(keys), "silo-0")
    server.part(tasks["silo-0"], keys, "silo-0")


def test_a_sum_over_too_few_or_of_a_round_not_trained_or_evaluated_is_refused(world):
    terms = {**TERMS, "minimum": 3}
    kits = world.federation("fedavg", run={"rounds": 3, "secure_aggregation": terms}, places=7)
    server = Summing(kits)
    tasks, keys = server.trained()
    fewer = {member: keys[member] for member in (0, 1)}
    with pytest.raises(ProtocolError, match="over 2 silos, but secure_aggregation"):
        server.part(tasks["silo-0"], fewer, "silo-0")
    untrained, _ = server.task(1, row=noise(2), silo="silo-0")
    with pytest.raises(ProtocolError, match="has not trained"):
        server.part(untrained, keys, "silo-0")
    evaluation, _ = server.task(1, silo="silo-0", trains=False)
    with pytest.raises(ProtocolError, match="has not trained"):
        server.part(evaluation, keys, "silo-0")
    with pytest.raises(ProtocolError, match="this silo is silo-0"):
        server.part(tasks["silo-1"], keys, "silo-0")


def test_no_sum_is_made_where_none_was_agreed_on(world):
    server = Summing(world.federation("fedavg", run={"rounds": 3}, places=7))
    task, enclosed = server.task()
    server.ask(task, enclosed)
    key = MaskKey(key="09" + "00" * 31, signature="")
    with pytest.raises(ProtocolError, match="has no secure aggregation"):
        ClientApp(Silo(server.kit())).masked_part(SumRequest(task=task, keys={0: key, 1: key}))


def test_a_request_is_bounded(server):
    tasks, keys = server.trained()
    request = SumRequest(task=tasks["silo-0"], keys=keys)
    assert read(SumRequest, request.model_dump_json()) == request
    text = request.model_dump_json().replace(keys[1].key, "x" * 64)
    with pytest.raises(ProtocolError, match="cannot be read"):
        read(SumRequest, text)


def test_the_secret_and_the_change_stay_with_the_round_and_leave_in_no_answer(server):
    tasks, _ = server.trained()
    app = ClientApp(Silo(server.kit("silo-0")))
    secret = app._rounds.secret(tasks["silo-0"])
    answer, uplink = app.answer(tasks["silo-0"], {})
    assert len(bytes.fromhex(secret)) == 32
    assert secret not in answer.model_dump_json()
    assert not uplink
    assert not answer.uplink


# What members read.


def test_a_silo_is_told_before_it_accepts(world):
    federation = world.federation("fedavg", **RUN)
    lines, leaves, _ = checked(federation.kits / "silo-0")
    assert "masked, only in a sum" in leaves["sum"]
    assert "clipped to 20" in leaves["sum"]
    assert lines


@pytest.mark.parametrize("method", ["apple"])
def test_a_study_of_a_method_that_needs_single_models_is_refused(method, world):
    with pytest.raises(ConfigError, match=f"server of {method} needs each client's model"):
        world.federation({"name": method}, **RUN).run()


def test_a_sum_over_more_silos_than_there_can_be_is_refused(world):
    federation = world.federation("fedavg", **RUN)
    text = federation.toml.read_text().replace("minimum = 2", "minimum = 9")
    federation.toml.write_text(text)
    with pytest.raises(ConfigError, match=r"minimum = 9, but there are 3 places; lower it"):
        Agreed.load(federation.toml)


@pytest.mark.slow
def test_the_change_is_from_the_model_as_it_came_in_bf16_too(world):
    federation = world.federation("fedavg", wire="bf16", **RUN)
    federation.run()
    assert len(events(federation, "sum")) == 3
