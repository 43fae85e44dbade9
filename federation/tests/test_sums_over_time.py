"""Secure aggregation while silos come, go and renew their keys, in a further study, and without
keys.
"""

from contextlib import nullcontext

import pytest

from federation_in_process import deployed, equal, lost
from pomona.core.errors import ConfigError, ProtocolError, QuorumError
from pomona.core.membership import Membership
from pomona.record.run_folder import load
from pomona.storage import checkpoint
from pomona_federation import flower_apps
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import complete_lines
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import SumRequest
from pomona_federation.messages.message_bodies import read as parsed
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo.masked_part import PastSum, PastSums
from test_key_renewal import in_round, renewals_and_a_newcomer, renewed
from test_secure_aggregation import RUN, TERMS, events, on_answer
from test_studies import decided, own_models, proposals, study_file

pytestmark = pytest.mark.long

FOUR = {"run": {**RUN["run"], "rounds": 4}}


@pytest.mark.parametrize("first", [2, 3])
def test_a_newcomer_with_a_certified_key_is_summed_and_a_renewed_key_signs(first, world):
    """A founder renews its key, a newcomer joins, and renews its own: nobody is absent, but for the
    newcomer's answer to its first round, if that is lost: it starts from what all receive then.
    """
    federation = world.federation("fedavg", places=4, **FOUR)
    if first == 3:
        federation.grid.faults.append(on_answer("task", number=2, node=30))
    renewals_and_a_newcomer(world, federation)
    federation.run()
    founders = list(federation.names)
    assert [e["silos"] for e in events(federation, "sum")] == [
        founders if number < first else [*founders, "late"] for number in (1, 2, 3, 4)
    ]


@pytest.mark.slow
def test_silos_that_come_and_go_leave_the_simulations_models(world):
    federation = world.federation("fedavg", **FOUR)
    late = federation.grid.folders.pop(12)
    in_round(world, 1, lambda: federation.grid.folders.update({12: late}))

    def revoke():
        registry = MemberRegistry(federation.server / "run", Federation.load(federation.toml))
        registry.revoke("silo-0")

    in_round(world, 2, revoke)
    federation.run()
    expected = world.simulated(federation, membership=Membership(joins={2: 2}, leaves={0: 2}))
    assert equal(deployed(federation), expected)


@pytest.mark.slow
def test_a_silo_that_is_lost_for_good_after_the_sum_was_settled_can_be_left_behind(world):
    """As the guide says: the server's and the silos' notes of the sum are removed by hand."""
    federation = world.federation("fedavg", patience=0.5, wait=0.5, **RUN)
    federation.grid.faults.append(on_answer("sum-request"))
    with pytest.raises(QuorumError, match="no uplink of round 2"):
        federation.run()
    federation.grid.faults.clear()
    federation.grid.folders.pop(11)
    with pytest.raises(QuorumError):
        federation.run()
    (federation.server / "run" / "sum.json").unlink()
    with pytest.raises(QuorumError):  # the others have masked for a sum with it
        federation.run()
    for name in ("silo-0", "silo-2"):
        (federation.kits / name / "state" / "asked.json").unlink()
        (federation.kits / name / "state" / "sums.json").unlink()
    federation.run()
    ours = deployed(federation)
    expected = world.simulated(federation, absent={(2, 1), (3, 1)})
    assert all(equal({n: ours[n]}, {n: expected[n]}) for n in ("silo-0", "silo-2"))


@pytest.mark.slow
def test_a_key_that_is_renewed_between_training_and_sum_signs_the_keys_of_the_round(world):
    """The silo is away for its part; when the server resumes, it has another key."""
    federation = world.federation("fedavg", **RUN)
    absent = [True]

    def fault(message, reply):
        unpacked = flower_apps.unpacked(message.content)
        silo = message.metadata.dst_node_id == 10
        lose = absent[0] and silo and unpacked.message_type == SumRequest.message_type
        return lost(message, 8) if lose and parsed(SumRequest, unpacked.body).number == 2 else reply

    federation.grid.faults.append(fault)
    with pytest.raises(QuorumError, match="no uplink of round 2"):
        federation.run()
    absent[0] = False
    renewed(federation.kits, "silo-0")
    federation.grid.folders[20] = federation.grid.folders.pop(10)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_a_further_study_is_summed_by_its_own_terms(world):
    """The study of the kits is not."""
    federation = world.federation("fedavg")
    queue = StudyQueue(federation.server)
    run = Federation.load(federation.toml).study.run
    queue.submit(study_file(federation, "second", run={**run, "secure_aggregation": TERMS}))
    for silo in federation.names:
        proposals(federation, silo)
        decided(federation, silo, "second")
    federation.run()
    assert not events(federation, "sum")
    federation.run("second")
    sums = events(federation, "sum")
    assert [e["silos"] for e in sums] == [federation.names] * 3
    plain, summed = deployed(federation), own_models(federation, "second")
    for name, model in summed.items():
        for key, tensor in model.items():
            assert (tensor - plain[name][key]).abs().max() < 1e-5
    assert not equal(plain, summed)


def test_a_change_is_not_summed_over_other_silos_in_a_further_study(world, caplog):
    """With one seed two silos repeat their first change, so that the difference of the two sums
    would be the third's; with another seed they do not.
    """
    federation = world.federation("fedavg", **RUN)
    queue, run = StudyQueue(federation.server), Federation.load(federation.toml).study.run
    federation.run()
    for name, seed in [("again", 0), ("other-seed", 1)]:
        queue.submit(study_file(federation, name, run={**run, "seed": seed}))
        for silo in federation.names:
            proposals(federation, silo)
            decided(federation, silo, name)
    federation.grid.gone = {12}
    with pytest.raises(QuorumError):
        federation.run("again")
    assert "has summed the same change over other silos" in caplog.text
    for silo in federation.names[:2]:  # none has masked a part: the study before has three sums
        lines = list(complete_lines(federation.kits / silo / "state" / "audit.jsonl"))
        assert len([line for line in lines if line["event"] == "sum"]) == 3
    federation.run("other-seed")
    assert [e["silos"] for e in events(federation, "sum")][-3:] == [["silo-0", "silo-1"]] * 3


def test_a_further_summed_study_names_its_seed_when_it_is_submitted(world):
    """By default it would have that of the first, and silos refuse to sum a repeated change over
    other silos: days later, when all have accepted.
    """
    federation = world.federation("fedavg", **RUN)
    queue, run = StudyQueue(federation.server), Federation.load(federation.toml).study.run
    run = {key: value for key, value in run.items() if key != "seed"}
    with pytest.raises(ConfigError, match=r"as in kit, .* set seed = 1 in \[run\]"):
        queue.submit(study_file(federation, "second", run=run))
    queue.submit(study_file(federation, "second", run={**run, "seed": 1}))
    with pytest.raises(ConfigError, match=r"set seed = 2 in \[run\]"):
        queue.submit(study_file(federation, "third", run=run))
    with pytest.raises(ConfigError, match="seed"):
        queue.submit(study_file(federation, "third", run={**run, "seed": "one"}))
    queue.submit(study_file(federation, "third", run={**run, "seed": 0}))  # said on purpose
    plain = {key: value for key, value in run.items() if key != "secure_aggregation"}
    queue.submit(study_file(federation, "fourth", run=plain))


def test_seeds_of_a_search_count_and_those_of_a_study_that_never_ran_do_not(world):
    federation = world.federation("fedavg", **RUN)
    queue, run = StudyQueue(federation.server), Federation.load(federation.toml).study.run
    run = {key: value for key, value in run.items() if key != "seed"}
    space = {"lr": [0.1, 0.2]}
    seeds = {"kind": "search", "search": {"space": {**space, "seed": [1, 2]}}}
    queue.submit(study_file(federation, "seeds", run=run, **seeds))
    queue.submit(study_file(federation, "dropped", run={**run, "seed": 7}))
    queue.abort("dropped")
    for kind in ({}, {"kind": "search", "search": {"space": space}}):
        with pytest.raises(ConfigError, match=r"set seed = 3 in \[run\]"):
            queue.submit(study_file(federation, "next", run=run, **kind))


def past_sum(change="1", agreement="2", run="3", terms="4"):
    """A sum by one digit of each of its hashes."""
    fields = {"change": change, "agreement": agreement, "terms": terms}
    return PastSum(run=run, **{key: digit * 64 for key, digit in fields.items()})


@pytest.mark.parametrize(
    ("differing", "refused"),
    [
        ({}, False),
        ({"terms": "5"}, True),
        ({"run": "5"}, False),  # the same sum again tells nothing
        ({"agreement": "5"}, False),
        ({"run": "5", "terms": "5"}, True),
        ({"agreement": "5", "terms": "5"}, True),
        ({"agreement": "5", "terms": "5", "change": "5"}, False),
    ],
)
def test_a_change_is_summed_over_the_same_silos_alone(tmp_path, differing, refused):
    (tmp_path / "state").mkdir()
    with PastSums.noting(tmp_path, past_sum()):
        pass
    outcome = pytest.raises(ProtocolError, match="another seed") if refused else nullcontext()
    with outcome, PastSums.noting(tmp_path, past_sum(**differing)):
        pass
    sums = read_sealed(PastSums, tmp_path / "state" / "sums.json").sums
    new = [] if refused or not differing else [past_sum(**differing)]
    assert list(sums) == [past_sum(), *new]


def test_a_refused_sum_is_not_remembered_and_the_newest_5000_are(tmp_path):
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "sums.json"
    with pytest.raises(ProtocolError, match="second"), PastSums.noting(tmp_path, past_sum()):
        raise ProtocolError("a second sum of a round")
    assert not path.exists()
    write_sealed(path, PastSums(sums=[past_sum(run=f"{n:064x}") for n in range(5000)]))
    with PastSums.noting(tmp_path, past_sum(run="f" * 64)):
        pass
    runs = [past.run for past in read_sealed(PastSums, path).sums]
    assert runs == [*(f"{n:064x}" for n in range(1, 5000)), "f" * 64]
    assert path.stat().st_size < 2e6


@pytest.mark.slow
def test_without_keys_on_loopback_sums_are_masked_and_unsigned(world):
    federation = world.federation("fedavg", insecure=True, **RUN)
    federation.run()
    assert equal(deployed(federation), world.simulated(federation))


def test_secrets_are_for_their_owner_alone_and_in_no_message(world):
    federation = world.federation("fedavg", **RUN)
    federation.run()
    paths = [p for n in federation.names for p in (federation.kits / n / "state").rglob("*")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)
    rounds = [
        p for p in paths if p.parent.name == "checkpoints" and checkpoint.NAME.fullmatch(p.name)
    ]
    secrets = {checkpoint.read(path).meta["secret"] for path in rounds}
    assert len(secrets) == len(rounds)
    assert all(secrets)
    bodies = [flower_apps.unpacked(m.content).body for m in federation.grid.sent]
    assert not any(secret in body for secret in secrets for body in bodies)
    assert load(federation.server / "run").config["secure_aggregation"]["max_norm"] == 20.0
