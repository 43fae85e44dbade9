"""A hostile server offering studies, and a hostile silo deciding on them: nothing is lost, mixed up
or let in.
"""

import json
import threading
from pathlib import PurePosixPath

import pytest

from pomona.core.errors import ConfigError, ProtocolError, StorageError
from pomona_federation import audit_log, json_store, versions
from pomona_federation.agreement import Federation
from pomona_federation.installation.contents import RULES, rule
from pomona_federation.keys import Signer
from pomona_federation.messages.message_bodies import STUDIES, Decision, StudyVisit, TakenDecision
from pomona_federation.server import consents
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.study_requests import StudyRequests
from pomona_federation.server.superlink_supervisor import ServerPolicy
from pomona_federation.silo import preflight, study_decisions, study_proposals
from pomona_federation.silo.consent_rules import ConsentTerms
from pomona_federation.silo.own_models import starting_model
from pomona_federation.silo.study_decisions import StudyDecision, StudyDecisions
from pomona_federation.silo.study_proposals import StudyWatch, visit
from pomona_federation.study import parse_study
from test_studies import asking, decided, heard, study_file


@pytest.fixture
def federation(world):
    return world.federation()


@pytest.fixture
def offered(federation):
    """A study that silo-0 knows and has not decided on."""
    known = StudyQueue(federation.server).submit(study_file(federation, "second"))
    heard(federation, "silo-0")
    return known


# A silo, against its server


def test_a_decision_that_is_made_while_the_server_answers_is_not_lost(federation, offered):
    kit, ask = federation.kits / "silo-0", asking(federation, "silo-0")
    known = StudyDecisions(kit)
    known.decide(known.lookup("second"), True, "Dr. North")

    def slowly(path, body):
        answer = ask(path, body)
        known.decide(known.lookup("second"), False, "Dr. North")
        return answer

    visit(kit, slowly)
    now = known.lookup("second")
    assert (now.status, now.sent) == ("declined", False)
    visit(kit, ask)
    assert known.lookup("second").sent
    assert Consents(StudyQueue(federation.server).study("second").folder).declined == {"silo-0"}


def test_rules_decide_on_nothing_that_the_administrator_has_decided_on_meanwhile(
    federation, offered
):
    known = StudyDecisions(federation.kits / "silo-0")
    judged = known.lookup("second")  # while the rules are applied
    declined = known.decide(judged, False, "Dr. North")
    assert known.decide(judged, True, "policy.toml", "rule 1", policy="a" * 64) == declined
    assert known.remark(judged, "no rule fits") == declined
    assert known.lookup("second") == declined
    assert known.decide(declined, True, "Dr. North").status == "accepted"


def test_a_study_that_two_processes_take_in_at_once_stays_as_it_was_decided(
    federation, monkeypatch
):
    """One has looked, the other takes the study in and decides on it, then the first one writes."""
    known = StudyQueue(federation.server).submit(study_file(federation, "second"))
    studies = StudyDecisions(federation.kits / "silo-0")
    new = StudyDecision(agreement=known.agreement, study=known.study)
    room, others = StudyDecisions._require_room, []

    def other():
        studies.propose(new)
        studies.decide(studies.lookup("second"), True, "Dr. North")

    def require_room(self, one):
        room(self, one)
        if not others:
            others.append(threading.Thread(target=other))
            others[0].start()
            others[0].join(0.5)

    monkeypatch.setattr(StudyDecisions, "_require_room", require_room)
    studies.propose(new)
    others[0].join(10)
    assert studies.lookup("second").status == "accepted"


def test_studies_whose_hashes_begin_alike_have_nothing_in_common(federation, offered):
    known = StudyDecisions(federation.kits / "silo-0")
    seen = known.decide(known.lookup("second"), True, "Dr. North")
    twin = seen.agreement[:-1] + ("0" if seen.agreement[-1] != "0" else "1")
    known.propose(StudyDecision(agreement=twin, study=seen.study))
    assert known.find(seen.agreement) == seen
    assert known.find(twin).status == "pending"
    with pytest.raises(ConfigError, match="2 studies"):
        known.lookup("second")


@pytest.mark.parametrize("digits", [8, 16, 40])
def test_no_study_bears_the_first_digits_of_anothers_hash_as_its_name(offered, digits):
    tree = json.loads(offered.study.text) | {"name": offered.agreement[:digits]}
    with pytest.raises(ProtocolError, match="first digits of a hash"):
        parse_study(json.dumps(tree))


def test_few_digits_name_no_study(federation, offered):
    known = StudyDecisions(federation.kits / "silo-0")
    assert known.lookup(offered.agreement[:8]).agreement == offered.agreement
    for few in (offered.agreement[:7], "", " "):
        with pytest.raises(ConfigError, match="no study"):
            known.lookup(few)


def test_nothing_is_stored_that_could_not_be_read_again(federation, offered, monkeypatch):
    known = StudyDecisions(federation.kits / "silo-0")
    seen = known.lookup("second")
    stored = (known.folder(seen) / "study.json").stat().st_size
    monkeypatch.setattr(json_store, "MAX_BYTES", stored + 50)
    with pytest.raises(StorageError, match="bytes"):
        known.propose(StudyDecision(agreement="a" * 64, study=seen.study, why="w" * 100))
    assert [k.agreement for k in known.all] == [seen.agreement]


def test_a_study_that_could_not_be_taken_in_is_tried_again_after_a_while(federation, monkeypatch):
    one, other = "a" * 64, "b" * 64
    offers, taken, said, now = [[one], [one], [one], [one, other], []], [], [], [0.0]
    monkeypatch.setattr(study_proposals, "compare", lambda *_: versions.installed())
    monkeypatch.setattr(study_proposals, "visit", lambda *_: offers.pop(0))
    monkeypatch.setattr(study_proposals.time, "monotonic", lambda: now[0])
    watch = StudyWatch(federation.kits / "silo-0", said.append)
    monkeypatch.setattr(watch, "_start_process", lambda: taken.append(now[0]))
    half = study_proposals.RETRY_SECONDS / 2
    for _ in range(5):
        watch.poll()
        now[0] += half
    assert taken == [0.0, 2 * half, 3 * half]  # new; once more; the other is new
    assert len(said) == 2
    assert watch._next_attempts == {}


def test_a_search_names_no_file_either(offered):
    text = offered.study.model_dump(mode="json", exclude={"share_scores"}) | {"kind": "search"}
    for key in ("model.init", "model.init_sha256", "model.name"):
        space = {key: ["weights.safetensors"]}
        with pytest.raises(ProtocolError, match="the same in all trials"):
            parse_study(json.dumps({**text, "search": {"space": space}}))


@pytest.mark.parametrize("done", ["rounds.jsonl", "survey.json"])
def test_studies_that_fit_the_rules_fill_no_disk_either(federation, offered, monkeypatch, done):
    """Accepted by rule they wait like others until something was done in them; a person may accept
    any number.
    """
    monkeypatch.setattr(study_decisions, "MAX_PENDING", 2)
    studies = StudyDecisions(federation.kits / "silo-0")
    fitting = [StudyDecision(agreement=f"{n:064x}", study=offered.study) for n in range(5)]
    studies.decide(studies.lookup("second"), True, "Dr. North")
    for study in fitting[:2]:
        studies.propose(study)
        studies.decide(study, True, "policy.toml", terms=ConsentTerms(), policy="a" * 64)
    with pytest.raises(ProtocolError, match="not begun"):
        studies.propose(fitting[2])
    (studies.folder(fitting[0]) / done).touch()
    studies.propose(fitting[2])
    with pytest.raises(ProtocolError, match="not begun"):
        studies.propose(fitting[3])
    studies.decide(studies.find(fitting[1].agreement), True, "Dr. North")
    studies.propose(fitting[3])


def test_a_study_is_not_read_at_each_visit(federation, offered, monkeypatch):
    kit, ask = federation.kits / "silo-0", asking(federation, "silo-0")
    studies, reads = StudyDecisions(kit), []
    read = study_decisions.read_json
    monkeypatch.setattr(
        study_decisions, "read_json", lambda *given: reads.append(given) or read(*given)
    )
    visit(kit, ask)
    reads.clear()
    for _ in range(3):
        assert visit(kit, ask) == []
    assert not reads
    studies.decide(studies.lookup("second"), True, "Dr. North")
    visit(kit, ask)
    assert studies.lookup("second").sent
    visit(kit, ask)
    reads.clear()
    visit(kit, ask)
    assert not reads


# The server, against a silo and its own administrator


def test_who_is_a_member_is_looked_up_where_it_is_written_also_during_a_further_study(
    federation, offered
):
    queue = StudyQueue(federation.server)
    policy = ServerPolicy(
        federation.server, None, None, None, None, None, _study=queue.study("second")
    )
    policy._changed()
    assert not policy._changed()
    MemberRegistry(federation.server / "run", queue.federation).revoke("silo-1")
    assert policy._changed()


def test_a_file_among_the_studies_is_no_study(federation, offered):
    (federation.server / "run/studies/notes.txt").write_text("who has called")
    assert [study.name for study in StudyQueue(federation.server).all] == ["kit", "second"]


def test_silos_models_are_erased_whatever_their_study_is_called():
    path = PurePosixPath("run/studies/report-1/checkpoints/000001.safetensors")
    assert rule(path, RULES["server"]).kind == "secret"
    assert rule(PurePosixPath("run/report.html"), RULES["server"]).kind == "keep"


def visited(federation, *decisions):
    """The response status for a visit of silo-0 with these decisions on studies, each signed by
    it.
    """
    signer = Signer(federation.kits / "silo-0/keys/silo.key")
    taken = []
    for study, accepted in decisions:
        said = Decision(silo="silo-0", study=study, accepted=accepted)
        taken.append(TakenDecision(decision=said, signature=signer.sign(said.kind, said.statement)))
    body = StudyVisit(silo="silo-0", decisions=tuple(taken)).model_dump_json().encode()
    return StudyRequests(federation.server).answer("silo-0", STUDIES, body)[0]


def raising(fault):
    """A function that raises this, whatever its arguments."""

    def fails(*_, **__):
        raise fault

    return fails


def noted(federation):
    """The decisions in the server's audit log."""
    lines = list(audit_log.complete_lines(federation.server / "run/audit.jsonl"))
    return [line["event"] for line in lines if line["event"] in {"accepted", "declined"}]


def test_of_many_decisions_on_one_study_in_a_visit_the_last_counts_alone(federation, offered):
    assert visited(federation, *[(offered.agreement, k % 2 == 0) for k in range(200)]) == 200
    assert noted(federation) == ["declined"]


def test_a_silo_that_changes_its_mind_for_ever_fills_no_disk(federation, offered, monkeypatch):
    monkeypatch.setattr(consents, "MOST_CHANGES", 3)
    answers = [visited(federation, (offered.agreement, k % 2 == 0)) for k in range(8)]
    # what it has said last may be said again
    assert answers == [200, 200, 200, 200, 400, 200, 400, 200]
    assert noted(federation) == ["accepted", "declined", "accepted", "declined"]


def test_no_decision_counts_that_the_audit_log_does_not_have(federation, offered, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(consents, "write_json", raising(OSError(28, "No space left on device")))
        assert visited(federation, (offered.agreement, True)) == 500
    assert noted(federation) == ["accepted"]
    assert visited(federation, (offered.agreement, True)) == 200
    assert (
        Consents(StudyQueue(federation.server).study("second").folder).decisions["silo-0"].accepted
    )


def test_decisions_on_studies_that_there_are_not_cost_the_server_no_signature(
    federation, offered, monkeypatch
):
    verified = []
    monkeypatch.setattr(MemberRegistry, "require_signed", lambda *given: verified.append(given))
    assert (
        visited(federation, *[(f"{k:064x}", True) for k in range(200)], (offered.agreement, True))
        == 200
    )
    assert len(verified) == 1


def test_a_decision_on_a_study_that_was_aborted_counts_once_it_is_resumed(federation, offered):
    queue = StudyQueue(federation.server)
    queue.abort("second")
    for silo in federation.names[1:]:
        known = StudyDecisions(federation.kits / silo)
        known.propose(StudyDecision(agreement=offered.agreement, study=offered.study))
    for silo in federation.names:
        decided(federation, silo, "second")
    queue.resume("second")
    assert queue.state(queue.study("second")) == "queued"


def test_an_evaluation_sends_the_model_of_no_other_study_than_the_one_it_names(federation):
    """People read the name, the hash decides."""
    kit = federation.kits / "silo-1"
    own = Federation.read(federation.toml)
    terms = {"of": "pilot", "agreement": own.agreement, "models": {"silo-1": 1}}
    study = {"name": "cross", "kind": "evaluate", "evaluate": terms}
    study |= {"task": own.study.task.model_dump(mode="json"), "run": {"model": {"name": "mlp"}}}
    known = StudyDecisions(kit)
    offer = StudyDecision(agreement="0" * 64, study=parse_study(json.dumps(study)))
    agreed = known.terms(own, offer)
    offer = offer.model_copy(update={"agreement": agreed.agreement})
    known.propose(offer)
    with pytest.raises(ProtocolError, match=r"of pilot, but the hash .* is that of kit"):
        starting_model(kit, agreed, None, 1, None)
    lines, _, _ = preflight.run(kit, "cross")
    (line,) = [line for line in lines if line.check == "agreement"]
    assert line.result == "failed"
    assert "that of kit" in line.text


@pytest.mark.long
def test_rules_accept_no_more_studies_than_they_say(federation):
    """Each is small, ends, and leaves its files: without a limit a server could fill any disk, and
    ask for ever.
    """
    kit = federation.kits / "silo-0"
    (kit / "policy.toml").write_text('kinds = ["train"]\nstudies = 2\n')
    for name in ("first", "second", "third"):
        StudyQueue(federation.server).submit(study_file(federation, name))
        said = heard(federation, "silo-0")
    states = {k.study.name: k.status for k in StudyDecisions(kit).all}
    assert states == {"first": "accepted", "second": "accepted", "third": "pending"}
    assert "rules have accepted 2 studies, studies = 2" in said[-1]
