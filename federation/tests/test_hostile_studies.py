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
from pomona_federation.messages.study_bodies import STUDIES, Decision, StudyVisit, TakenDecision
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
from test_studies import asking, decided, proposals, study_file


@pytest.fixture
def federation(world):
    return world.federation()


@pytest.fixture
def offered(federation):
    """A study that silo-0 knows and has not decided on."""
    submitted = StudyQueue(federation.server).submit(study_file(federation, "second"))
    proposals(federation, "silo-0")
    return submitted


# A silo, against its server


def test_a_decision_that_is_made_while_the_server_answers_is_not_lost(federation, offered):
    kit, post = federation.kits / "silo-0", asking(federation, "silo-0")
    decisions = StudyDecisions(kit)
    decisions.decide(decisions.lookup("second"), True, "Dr. North")

    def slowly(path, body):
        answer = post(path, body)
        decisions.decide(decisions.lookup("second"), False, "Dr. North")
        return answer

    visit(kit, slowly)
    decision = decisions.lookup("second")
    assert (decision.status, decision.sent) == ("declined", False)
    visit(kit, post)
    assert decisions.lookup("second").sent
    assert Consents(StudyQueue(federation.server).study("second").folder).declined == {"silo-0"}


def test_rules_decide_on_nothing_that_the_administrator_has_decided_on_meanwhile(
    federation, offered
):
    decisions = StudyDecisions(federation.kits / "silo-0")
    judged = decisions.lookup("second")  # while the rules are applied
    declined = decisions.decide(judged, False, "Dr. North")
    assert decisions.decide(judged, True, "policy.toml", "rule 1", policy="a" * 64) == declined
    assert decisions.remark(judged, "no rule fits") == declined
    assert decisions.lookup("second") == declined
    assert decisions.decide(declined, True, "Dr. North").status == "accepted"


def test_a_study_that_two_processes_take_in_at_once_stays_as_it_was_decided(
    federation, monkeypatch
):
    """One has looked, the other takes the study in and decides on it, then the first one writes."""
    submitted = StudyQueue(federation.server).submit(study_file(federation, "second"))
    studies = StudyDecisions(federation.kits / "silo-0")
    new = StudyDecision(agreement=submitted.agreement, study=submitted.study)
    room, threads = StudyDecisions._require_room, []

    def propose_and_decide():
        studies.propose(new)
        studies.decide(studies.lookup("second"), True, "Dr. North")

    def require_room(self, proposed):
        room(self, proposed)
        if not threads:
            threads.append(threading.Thread(target=propose_and_decide))
            threads[0].start()
            threads[0].join(0.5)

    monkeypatch.setattr(StudyDecisions, "_require_room", require_room)
    studies.propose(new)
    threads[0].join(10)
    assert studies.lookup("second").status == "accepted"


def test_studies_whose_hashes_begin_alike_have_nothing_in_common(federation, offered):
    decisions = StudyDecisions(federation.kits / "silo-0")
    decision = decisions.decide(decisions.lookup("second"), True, "Dr. North")
    twin = decision.agreement[:-1] + ("0" if decision.agreement[-1] != "0" else "1")
    decisions.propose(StudyDecision(agreement=twin, study=decision.study))
    assert decisions.find(decision.agreement) == decision
    assert decisions.find(twin).status == "pending"
    with pytest.raises(ConfigError, match="2 studies"):
        decisions.lookup("second")


@pytest.mark.parametrize("digits", [8, 16, 40])
def test_no_study_bears_the_first_digits_of_anothers_hash_as_its_name(offered, digits):
    tree = json.loads(offered.study.text) | {"name": offered.agreement[:digits]}
    with pytest.raises(ProtocolError, match="first digits of a hash"):
        parse_study(json.dumps(tree))


def test_few_digits_name_no_study(federation, offered):
    decisions = StudyDecisions(federation.kits / "silo-0")
    assert decisions.lookup(offered.agreement[:8]).agreement == offered.agreement
    for digits in (offered.agreement[:7], "", " "):
        with pytest.raises(ConfigError, match="no study"):
            decisions.lookup(digits)


def test_nothing_is_stored_that_could_not_be_read_again(federation, offered, monkeypatch):
    decisions = StudyDecisions(federation.kits / "silo-0")
    decision = decisions.lookup("second")
    stored = (decisions.folder(decision) / "study.json").stat().st_size
    monkeypatch.setattr(json_store, "MAX_BYTES", stored + 50)
    with pytest.raises(StorageError, match="bytes"):
        decisions.propose(StudyDecision(agreement="a" * 64, study=decision.study, why="w" * 100))
    assert [k.agreement for k in decisions.all] == [decision.agreement]


def test_a_study_that_could_not_be_taken_in_is_tried_again_after_a_while(federation, monkeypatch):
    a, b = "a" * 64, "b" * 64
    offers, runs, notes, clock = [[a], [a], [a], [a, b], []], [], [], [0.0]
    monkeypatch.setattr(study_proposals, "compare", lambda *_: versions.installed())
    monkeypatch.setattr(study_proposals, "visit", lambda *_: offers.pop(0))
    monkeypatch.setattr(study_proposals.time, "monotonic", lambda: clock[0])
    watch = StudyWatch(federation.kits / "silo-0", notes.append)
    monkeypatch.setattr(watch, "_start_process", lambda: runs.append(clock[0]))
    delay = study_proposals.RETRY_SECONDS / 2
    for _ in range(5):
        watch.poll()
        clock[0] += delay
    assert runs == [0.0, 2 * delay, 3 * delay]  # new; once more; the other is new
    assert len(notes) == 2
    assert watch._next_attempts == {}


def test_a_search_names_no_file_either(offered):
    text = offered.study.model_dump(mode="json", exclude={"share_scores"}) | {"kind": "search"}
    for key in ("model.init", "model.init_sha256", "model.name"):
        space = {key: ["weights.safetensors"]}
        with pytest.raises(ProtocolError, match="the same in all trials"):
            parse_study(json.dumps({**text, "search": {"space": space}}))


@pytest.mark.parametrize("file", ["rounds.jsonl", "survey.json"])
def test_studies_that_fit_the_rules_fill_no_disk_either(federation, offered, monkeypatch, file):
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
    (studies.folder(fitting[0]) / file).touch()
    studies.propose(fitting[2])
    with pytest.raises(ProtocolError, match="not begun"):
        studies.propose(fitting[3])
    studies.decide(studies.find(fitting[1].agreement), True, "Dr. North")
    studies.propose(fitting[3])


def test_a_study_is_not_read_at_each_visit(federation, offered, monkeypatch):
    kit, post = federation.kits / "silo-0", asking(federation, "silo-0")
    studies, reads = StudyDecisions(kit), []
    read = study_decisions.read_json
    monkeypatch.setattr(
        study_decisions, "read_json", lambda *arguments: reads.append(arguments) or read(*arguments)
    )
    visit(kit, post)
    reads.clear()
    for _ in range(3):
        assert visit(kit, post) == []
    assert not reads
    studies.decide(studies.lookup("second"), True, "Dr. North")
    visit(kit, post)
    assert studies.lookup("second").sent
    visit(kit, post)
    reads.clear()
    visit(kit, post)
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
    votes = []
    for study, accepted in decisions:
        vote = Decision(silo="silo-0", study=study, accepted=accepted)
        signature = signer.sign(vote.message_type, vote.statement)
        votes.append(TakenDecision(decision=vote, signature=signature))
    body = StudyVisit(silo="silo-0", decisions=tuple(votes)).model_dump_json().encode()
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
    with monkeypatch.context() as patch:
        patch.setattr(consents, "write_json", raising(OSError(28, "No space left on device")))
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
    monkeypatch.setattr(MemberRegistry, "require_signed", lambda *args: verified.append(args))
    assert (
        visited(federation, *[(f"{k:064x}", True) for k in range(200)], (offered.agreement, True))
        == 200
    )
    assert len(verified) == 1


def test_a_decision_on_a_study_that_was_aborted_counts_once_it_is_resumed(federation, offered):
    queue = StudyQueue(federation.server)
    queue.abort("second")
    for silo in federation.names[1:]:
        decisions = StudyDecisions(federation.kits / silo)
        decisions.propose(StudyDecision(agreement=offered.agreement, study=offered.study))
    for silo in federation.names:
        decided(federation, silo, "second")
    queue.resume("second")
    assert queue.state(queue.study("second")) == "queued"


def test_an_evaluation_sends_the_model_of_no_other_study_than_the_one_it_names(federation):
    """People read the name, the hash decides."""
    kit = federation.kits / "silo-1"
    toml = Federation.read(federation.toml)
    terms = {"of": "pilot", "agreement": toml.agreement, "models": {"silo-1": 1}}
    study = {"name": "cross", "kind": "evaluate", "evaluate": terms}
    study |= {"task": toml.study.task.model_dump(mode="json"), "run": {"model": {"name": "mlp"}}}
    decisions = StudyDecisions(kit)
    offer = StudyDecision(agreement="0" * 64, study=parse_study(json.dumps(study)))
    study_terms = decisions.terms(toml, offer)
    offer = offer.model_copy(update={"agreement": study_terms.agreement})
    decisions.propose(offer)
    with pytest.raises(ProtocolError, match=r"of pilot, but the hash .* is that of kit"):
        starting_model(kit, study_terms, None, 1, None)
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
        messages = proposals(federation, "silo-0")
    states = {k.study.name: k.status for k in StudyDecisions(kit).all}
    assert states == {"first": "accepted", "second": "accepted", "third": "pending"}
    assert "rules have accepted 2 studies, studies = 2" in messages[-1]
