"""Faults of silos, of the server and on the way between them, over a grid in this process.

See ``docs/internals/fault-tables.md``. In each, the federation ends with the models of a run in
which the same silos were declared absent.
"""

import io
import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from federation_in_process import deployed, equal, lost, stopped_after
from pomona.core.errors import CheckpointError, DivergedError, ProtocolError, QuorumError
from pomona.core.membership import Membership
from pomona.federation.client import ClientRuntime
from pomona.storage.run_status import read_status
from pomona_federation import flower_apps, status
from pomona_federation.audit_log import complete_lines
from pomona_federation.messages.message_bodies import Task, read
from pomona_federation.messages.tensor_bytes import Encoding, PackedRows, sha256
from pomona_federation.server import flower_transport
from pomona_federation.server.server_app import ServerStatusFile
from pomona_federation.silo import client_app, preflight, silo_report
from representatives import drawn

pytestmark = pytest.mark.long

BAD = {(2, 1)}  # silo-1 in round 2


class Canary:
    """Creates a file when unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("canary"),)


def disconnect(grid, message, _):
    grid.gone.add(11)
    return lost(message)


def zipped(_):
    """Output of torch.save."""
    buffer = io.BytesIO()
    torch.save({"core": Canary()}, buffer)
    return buffer.getvalue()


def tensors(function):
    """Uplink bytes with the tensors from ``function``."""

    def change(data):
        return ENCODING.pack_uplink(function(ENCODING.unpack_uplink(data, ROW)))

    return change


CORE = 64 * 8 + 8 + 8 * 10 + 10  # parameters of the test's network
ROW = {"core": torch.empty(CORE), "request": torch.empty(1, dtype=torch.long)}
ENCODING = Encoding("fp32", 3)
UPLINKS = {
    "F23 NaN": (
        tensors(lambda u: {**u, "core": u["core"].index_fill(0, torch.tensor([7]), torch.nan)}),
        "not finite",
    ),
    "F24 a broadcastable shape": (tensors(lambda u: {**u, "core": u["core"][:1]}), "shape"),
    "F25 another dtype": (tensors(lambda u: {**u, "core": u["core"].half()}), "dtype"),
    "F26 a missing tensor": (tensors(lambda u: {"core": u["core"]}), "missing"),
    "F28 ten times the size": (lambda data: data * 10, "bytes; the limit is"),
    "F28 a header that lies": (lambda data: (2**40).to_bytes(8, "little") + data[8:], "header"),
    "F29 a pickle": (lambda _: pickle.dumps(Canary()), "cannot be read"),
    "F29 a torch archive": (zipped, "cannot be read"),
    "F31 a million times as large": (tensors(lambda u: {**u, "core": u["core"] * 1e6}), "norm"),
    "nothing": (lambda _: b"", "cannot be read"),
}


def reasons(federation):
    """All reasons in the server's audit log."""
    lines = list(complete_lines(federation.server / "run" / "audit.jsonl"))
    texts = ((e.get("reason") or "", e.get("detail") or e.get("text") or "") for e in lines)
    return " | ".join(" ".join(filter(None, text)) for text in texts)


def signed_again(silo, task, uplink):
    """New signatures on the changed rows, as far as they can be read."""
    try:
        return silo._signatures(task, ENCODING.unpack_uplink(uplink, ROW))
    except ProtocolError:
        return {}


def mistaken(patch, change, rounds=(2,)):
    """Make silo-1 answer round 2, or others, with another uplink, which it signs."""
    answer = client_app.ClientApp.answer

    def answers(self, task, enclosed):
        body, uplink = answer(self, task, enclosed)
        if task.trains and task.number in rounds and self.silo.file.name == "silo-1":
            uplink = change(uplink)
            body = body.model_copy(
                update={"uplink": sha256(uplink), "rows": signed_again(self, task, uplink)}
            )
        return body, uplink

    patch.setattr(client_app.ClientApp, "answer", answers)


@pytest.mark.parametrize("case", drawn(UPLINKS, 2))
def test_an_uplink_that_is_wrong_counts_as_absent(case, world):
    change, reason = UPLINKS[case]
    federation = world.federation(run={"rounds": 4}, quorum=2)
    world.patch.chdir(world.folder)
    mistaken(world.patch, change)
    federation.run()
    assert reason in reasons(federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))
    assert not Path("canary").exists()


def on_answer(change, number=2, node=11, times=9):
    """A fault on the way back, applied to the answer to a training task."""
    left = [times]

    def fault(message, reply):
        unpacked = flower_apps.unpacked(message.content)
        task = read(Task, unpacked.body) if unpacked.message_type == "task" else None
        if (
            task
            and task.trains
            and task.number == number
            and message.metadata.dst_node_id == node
            and left[0]
        ):
            left[0] -= 1
            return change(message, reply)
        return reply

    return fault


def repacked(change):
    """Replace the content of a reply."""

    def apply(message, reply):
        changed = change(flower_apps.unpacked(reply.content))
        return type(reply)(flower_apps.packed(changed), reply_to=message)

    return apply


LINE_FAULTS = {
    "F1 the node is gone": (lambda m, _: lost(m), "error 5"),
    "the app crashed": (lambda m, _: lost(m, 8), "worker-ended"),
    "the app raised": (lambda m, _: lost(m, 2), "error 2"),
    "F22 a cut upload": (
        repacked(lambda p: replace(p, enclosed={"uplink": p.enclosed["uplink"][:-9]})),
        "not the one",
    ),
    "bytes changed on the way": (
        repacked(lambda p: replace(p, enclosed={"uplink": p.enclosed["uplink"][:-1] + b"\1"})),
        "not the one that was signed",
    ),
    "text changed on the way": (
        repacked(lambda p: replace(p, body=p.body.replace('"samples":', '"samples":1'))),
        "signature is not silo-1's",
    ),
    "F3 no signature": (repacked(lambda p: replace(p, signature="")), "signature is not silo-1's"),
    "no text at all": (repacked(lambda p: replace(p, body="{")), "cannot be read"),
    "no answer within the deadline": (lambda *_: None, "deadline"),
}


@pytest.mark.parametrize("case", drawn(LINE_FAULTS, 2))
def test_what_goes_wrong_on_the_way_counts_as_absent(case, world):
    change, reason = LINE_FAULTS[case]
    federation = world.federation(run={"rounds": 4}, deadline=1.0 if "deadline" in case else 60.0)
    federation.grid.faults.append(on_answer(change))
    federation.run()
    assert reason in reasons(federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


@pytest.mark.parametrize(
    "second", [lambda p: p, lambda p: replace(p, body="{")], ids=["F15 same", "F16 another"]
)
def test_of_two_answers_the_first_counts(second, world):
    federation = world.federation()
    federation.grid.faults.append(on_answer(lambda m, reply: [reply, repacked(second)(m, reply)]))
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_silo_begins_from_the_members_of_when_it_joined(stopped, world):
    """silo-2 comes with round 2; the answers of silo-1, which was there before, are lost in rounds 1
    and 2. APPLE's relationships start from the shares of the members.
    """
    federation = world.federation(run={"rounds": 4}, quorum=1)
    late = federation.grid.folders.pop(12)
    federation.grid.faults += [on_answer(lambda m, _: lost(m), number) for number in (1, 2)]
    round_ = ServerStatusFile.on_round_end

    def rounds(news, row, evaluations):
        round_(news, row, evaluations)
        federation.grid.folders[12] = late

    world.patch.setattr(ServerStatusFile, "on_round_end", rounds)
    if stopped:
        stopped_after(federation, world.patch, 2)
    federation.run()
    joins = Membership(joins={2: 2})
    expected = world.simulated(federation, absent={(1, 1), (2, 1)}, membership=joins)
    assert equal(deployed(federation), expected)


@pytest.mark.parametrize("back", [None, 3], ids=["for good", "until round 3"])
def test_a_network_that_is_cut(back, world):
    """F21: the node is offline for longer than ``patience``; it takes part again from when it is
    back.
    """
    federation = world.federation(run={"rounds": 4}, patience=0.2)
    grid = federation.grid

    def mended(_, reply):
        grid.gone.discard(11)
        return reply

    grid.faults.append(on_answer(partial(disconnect, grid), times=1))
    if back:
        # Whoever is asked first in that round, before anybody looks who is online.
        grid.faults += [on_answer(mended, number=back, node=node) for node in (10, 12)]
    federation.run()
    ours = deployed(federation)
    expected = world.simulated(federation, absent=BAD if back else {(r, 1) for r in (2, 3, 4)})
    # one that is cut off keeps the model that it had
    unaffected = federation.names if back else ["silo-0", "silo-2"]
    assert equal({n: ours[n] for n in unaffected}, {n: expected[n] for n in unaffected})


def test_a_short_cut_of_the_network_is_not_seen_in_the_models(world):
    """F21: back within ``patience``, after a few looks."""
    federation, offline_checks = world.federation(), []
    grid, online = federation.grid, federation.grid.get_node_ids

    def node_ids():
        offline_checks.extend([1] if grid.gone else [])
        if len(offline_checks) == 3:
            grid.gone.clear()
        return online()

    world.patch.setattr(grid, "get_node_ids", node_ids)
    grid.faults.append(on_answer(partial(disconnect, grid), times=1))
    federation.run()
    assert len(offline_checks) == 3
    assert equal(deployed(federation), world.simulated(federation))


@pytest.mark.parametrize("samples", drawn([0, -9, 1e18, 2**70, True, "60", None]))
def test_a_silo_that_counts_other_samples_than_it_said_is_absent(samples, world):
    """F27: it signs what it says, so that only admission can tell."""
    federation, answer = world.federation(run={"rounds": 4}), client_app.ClientApp.answer

    def answers(self, task, enclosed):
        body, uplink = answer(self, task, enclosed)
        lies = task.trains and task.number == 2 and self.silo.file.name == "silo-1"
        return (body.model_copy(update={"samples": samples}) if lies else body), uplink

    world.patch.setattr(client_app.ClientApp, "answer", answers)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_other_values_in_as_many_rows_are_refused_until_they_are_put_back(world):
    """Test rows are drawn by their number: of other data some would have been trained on."""
    federation = world.federation(run={"rounds": 4})
    stopped_after(federation, world.patch, 1)
    path = federation.kits / "silo-1/data/train.npz"
    original = path.read_bytes()
    with np.load(path) as arrays:
        np.savez(path, **{name: array[::-1] for name, array in arrays.items()})
    data_line = next(line for line in preflight.run(path.parents[1])[0] if line.check == "data")
    assert "its split differs from that of its first task" in data_line.text
    stopped_after(federation, world.patch, 2)
    path.write_bytes(original)
    federation.run()
    assert "its split differs from that of its first task" in reasons(federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_clocks_that_jump_by_days_change_nothing(world):
    """F45: deadlines and waits are measured by the clock that cannot be set."""
    federation, clock_reads, wall = world.federation(deadline=5.0), count(), time.time

    def jumping():
        return wall() + 86400.0 * (-1) ** next(clock_reads)

    with world.patch.context() as patch:
        for module in [time, *sys.modules.values()]:  # many hold it by a name of their own
            if vars(module).get("time") is wall:
                patch.setattr(module, "time", jumping)
        federation.run()
    assert next(clock_reads) >= 5  # start, three rounds, end
    assert equal(deployed(federation), world.simulated(federation))


def test_a_node_that_comes_back_within_the_round_is_asked_again(world):
    federation = world.federation()
    trained = counted(world.patch)
    federation.grid.faults.append(on_answer(lambda m, _: lost(m), times=2))
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    assert trained.count((2, 1)) == 1  # its answer was waiting


def counted(patch):
    """(round, silo) of every training computed from here on."""
    trained, visit = [], client_app.visit

    def visits(silo, rounds, checked):
        if checked.task.trains:
            trained.append((checked.task.number, checked.task.place))
        return visit(silo, rounds, checked)

    patch.setattr(client_app, "visit", visits)
    return trained


def test_an_answer_to_an_earlier_task_is_not_taken(world):
    """F17: silo-1 answers round 2 with what it answered in round 1."""
    federation = world.federation(run={"rounds": 4})
    old = []

    def recorded(_, reply):
        old.append(flower_apps.unpacked(reply.content))
        return reply

    federation.grid.faults += [on_answer(recorded, number=1), on_answer(repacked(lambda _: old[0]))]
    federation.run()
    assert "another task" in reasons(federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_silo_whose_code_fails_tells_nothing(world):
    federation = world.federation(run={"rounds": 4})
    visit = client_app.visit

    def fails(silo, rounds, checked):
        task = checked.task
        if task.trains and task.number == 2 and silo.file.name == "silo-1":
            raise RuntimeError(f"patient 17 in {silo.folder}")
        return visit(silo, rounds, checked)

    world.patch.setattr(client_app, "visit", fails)
    federation.run()
    log = (federation.server / "run" / "audit.jsonl").read_text()
    assert "RuntimeError" in log
    assert "patient" not in log
    assert str(world.folder) not in log
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


KILLS = [(number, moment) for number in (1, 2, 3) for moment in ("before", "after")]


@pytest.mark.parametrize(("number", "moment"), drawn(KILLS))
def test_a_server_that_is_killed_goes_on(moment, number, world):
    """F4: between training and commit, or between commit and the next round."""
    federation = world.federation()
    trained = counted(world.patch)

    def killed_before(_, round_):
        if round_ == number:
            raise KeyboardInterrupt

    def killed_after(_, row, __):
        if row.round == number:
            raise KeyboardInterrupt

    with world.patch.context() as patch:
        if moment == "before":
            patch.setattr(ServerStatusFile, "on_before_commit", killed_before)
        else:
            patch.setattr(ServerStatusFile, "on_round_end", killed_after)
        with pytest.raises(KeyboardInterrupt):
            federation.run()
    assert read_status(federation.server / "run").code == 130
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))
    # nobody trained a round twice
    assert sorted(trained) == [(r, p) for r in (1, 2, 3) for p in (0, 1, 2)]


def test_an_app_that_is_told_to_stop_is_not_finished(world):
    """Flower ends a ServerApp that gets SIGTERM with exit code 0."""
    federation = world.federation()

    def stopped(*_):
        raise SystemExit(0)

    with world.patch.context() as patch:
        patch.setattr(ServerStatusFile, "on_before_commit", stopped)
        with pytest.raises(SystemExit):
            federation.run()
    status = read_status(federation.server / "run")
    assert (status.state, status.code) == ("interrupted", 143)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_quorum_lost_and_regained(world):
    """F19: a round that too few answer is tried once more, then the run stops; it goes on when they
    are back.
    """
    federation = world.federation(quorum=3)
    federation.grid.faults.append(on_answer(lambda m, _: lost(m, 2)))
    with pytest.raises(QuorumError, match="2 uplinks of round 2 can be used, but 3 are needed"):
        federation.run()
    assert read_status(federation.server / "run").code == 7
    federation.grid.faults.clear()
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_too_few_silos_at_the_start(world):
    """F20: the wait for them ends."""
    federation = world.federation(quorum=3, wait=0.5)
    del federation.grid.folders[11]
    with pytest.raises(QuorumError, match="missing: silo-1"):
        federation.run()


def test_a_silo_that_lost_its_state_says_so_and_is_absent(world):
    federation = world.federation(run={"rounds": 4})

    def loses(message, reply):
        for path in (federation.kits / "silo-1" / "state" / "checkpoints").iterdir():
            path.unlink()
        return reply

    federation.grid.faults.append(on_answer(loses, number=2))
    federation.run()
    unused = [
        line
        for line in complete_lines(federation.server / "run" / "audit.jsonl")
        if line["event"] == "unused" and "it has no state of the study" in line["detail"]
    ]
    assert {line["reason"] for line in unused} == {"silo-state"}
    absent = {(3, 1), (4, 1)}
    expected = world.simulated(federation, absent=absent)
    ours = deployed(federation)
    assert equal(
        {n: ours[n] for n in ("silo-0", "silo-2")}, {n: expected[n] for n in ("silo-0", "silo-2")}
    )


@pytest.mark.parametrize("swap", [True, False], ids=["two cores swapped", "a core invented"])
def test_a_server_cannot_swap_or_invent_a_core(swap, world):
    """F49: every silo refuses the round, and names whose row it is."""
    federation, digest = world.federation({"name": "apple"}), PackedRows.digest

    def false(packed, key, j):
        if swap:
            return digest(packed, key, 2 - j if j in (0, 2) else j)
        return packed.add(packed.downlink[key].bank[j] + 1)

    task = flower_transport.FlowerTransport._task

    def tasks(self, visit, *arguments):
        if visit.round.number == 3 and visit.trains:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(PackedRows, "digest", false)
                return task(self, visit, *arguments)
        return task(self, visit, *arguments)

    world.patch.setattr(flower_transport.FlowerTransport, "_task", tasks)
    with pytest.raises(QuorumError):
        federation.run()
    assert "the row of silo-0 is not signed by silo-0" in reasons(federation)


def test_another_agreement_is_refused(world):
    """A server that means something else than the silo agreed to."""
    federation = world.federation(wait=0.5)
    text = federation.toml.read_text().replace("rounds = 3", "rounds = 30")
    (federation.server / "federation.toml").write_text(text)
    with pytest.raises(QuorumError):
        federation.run()
    assert "something other than what this silo agreed to" in reasons(federation)


def test_a_silos_own_file_may_not_change_behind_its_back(world):
    federation = world.federation(wait=0.5)
    federation.run()
    text = federation.toml.read_text().replace("rounds = 3", "rounds = 30")
    for kit in ("server", *federation.names):
        (federation.kits / kit / "federation.toml").write_text(text)
    with pytest.raises(CheckpointError, match="agreement"):
        federation.run()


def test_a_silo_with_an_unknown_key_gets_no_place(world):
    federation = world.federation(wait=0.5, quorum=2)
    key, other_key = (federation.kits / n / "keys" / "silo.key" for n in ("silo-1", "silo-0"))
    key.write_bytes(other_key.read_bytes())
    federation.run()
    assert "the signature is not silo-1's" in reasons(federation)
    assert not (federation.kits / "silo-1" / "state" / "models").exists()


def run_with_a_diverging_silo(world, federation):
    """Run with the training of silo-1 diverging in round 2."""
    serve = ClientRuntime._serve

    def diverges(self, visit, ids, received):
        if visit.trains and visit.round.number == 2 and ids == (1,):
            raise DivergedError("client 1, round 2, step 3: the loss is nan")
        return serve(self, visit, ids, received)

    with world.patch.context() as patch:
        patch.setattr(ClientRuntime, "_serve", diverges)
        federation.run()


def test_diverged_silo_counts_as_absent(world):
    federation = world.federation(run={"rounds": 4})
    run_with_a_diverging_silo(world, federation)
    assert "step 3" in reasons(federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_silo_that_diverges_while_the_others_are_away_ends_no_study(world):
    """The one answer to round 2 is too few: it is asked for once more, when the others are back."""
    federation = world.federation(run={"rounds": 4}, quorum=2)
    for node in (10, 12):
        federation.grid.faults.append(on_answer(lambda m, _: lost(m, 2), node=node, times=1))
    run_with_a_diverging_silo(world, federation)
    assert equal(deployed(federation), world.simulated(federation, absent=BAD))


def test_a_silo_that_diverged_in_the_last_round_is_told_of_with_its_fault(world):
    """What it says begins with its name, and is nobody else's."""
    federation = world.federation(run={"rounds": 2}, quorum=2)
    run_with_a_diverging_silo(world, federation)
    states = {
        silo["silo"]: (silo["state"], (silo["unused"] or {}).get("detail"))
        for silo in status.server(federation.server)["silos"]
    }
    detail = "silo-1, round 2, step 3: the loss is nan; method.dr_lr may be too high, too"
    assert states == {
        "silo-0": ("present", None),
        "silo-1": ("rejected", detail),
        "silo-2": ("present", None),
    }
    log = (federation.server / "run" / "logs" / "server.log").read_text()
    assert [
        line
        for line in log.splitlines()
        if "silo-1 was not used: " in line and detail in line and " WARNING " in line
    ]


def test_a_silos_card_and_report_are_of_the_model_of_its_last_round_that_counted(world):
    """Its uplink of round 2, the last, is refused; what the closing visit evaluates is round 1's
    model.
    """
    federation = world.federation(run={"rounds": 2}, quorum=2)
    with world.patch.context() as patch:
        mistaken(patch, UPLINKS["F23 NaN"][0])
        federation.run()
    for silo, number in (("silo-0", 2), ("silo-1", 1)):
        folder = federation.kits / silo
        assert f"after round {number}." in (folder / "state/models/personal.card.md").read_text()
        assert silo_report.report(folder)[0].own["round"] == number


def test_a_silo_that_is_asked_no_more_stays_refused_with_the_reason(world):
    """Three of its uplinks are refused in a row; in rounds 4 and 5 it is not asked to train."""
    federation = world.federation(run={"rounds": 5}, quorum=2)
    with world.patch.context() as patch:
        mistaken(patch, UPLINKS["F23 NaN"][0], range(1, 6))
        federation.run()
    states = {
        silo["silo"]: (silo["state"], (silo["unused"] or {}).get("reason"))
        for silo in status.server(federation.server)["silos"]
    }
    assert states == {
        "silo-0": ("present", None),
        "silo-1": ("rejected", "quarantine"),
        "silo-2": ("present", None),
    }
    log = (federation.server / "run" / "logs" / "server.log").read_text()
    assert log.count("silo-1, round 3: refused too often in a row; quarantined") == 1
    assert [number for number in range(1, 6) if f"silo-1, round {number}: tensor" in log] == [
        1,
        2,
        3,
    ]
