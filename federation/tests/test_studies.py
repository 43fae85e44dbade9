"""Studies on an existing federation: submitted, offered, accepted or declined by each silo, and run
in sequence.
"""

import os
import time
import tomllib
from contextlib import suppress

import pytest
import tomli_w

from federation_in_process import audited, equal, loaded
from pomona.cli import main
from pomona.core.errors import ConfigError, LockedError, ProtocolError, QuorumError
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation import audit_log, status, versions
from pomona_federation.agreement import Federation
from pomona_federation.messages.study_bodies import STUDIES, StudyVisit
from pomona_federation.provision.provision import add
from pomona_federation.server import contacts, launcher
from pomona_federation.server.consents import Consents
from pomona_federation.server.registry_admin import dismiss, uplinks
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.study_requests import StudyRequests, overview
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_proposals import compare, consider, visit
from pomona_federation.study import study_of
from pomona_federation.unused_uplinks import Reason

pytestmark = pytest.mark.long


def study_file(federation, name, **changes):
    """The terms of the federation's own study as another study's ``STUDY.toml``, in a file."""
    tree = tomllib.loads(federation.toml.read_text())
    terms = {key: tree[key] for key in ("run", "task", "deadline", "wait")}
    path = federation.toml.with_name(f"{name}.toml")
    path.write_text(tomli_w.dumps({**terms, "name": name, "quorum": 1, **changes}))
    return path


def asking(federation, silo):
    """A silo's requests, answered by the server's desk as the gate does for a member."""
    desk = StudyRequests(federation.server)

    def post(path, body):
        status, text = desk.answer(silo, path, body or b"")
        if status != 200:
            raise ProtocolError(text.decode())
        return text

    return post


def proposals(federation, silo):
    """Make a silo ask for studies; return the lines for its administrator."""
    messages = []
    consider(federation.kits / silo, asking(federation, silo), messages.append)
    return messages


def decided(federation, silo, name, accepted=True):
    """Record an administrator's decision and send it to the server."""
    decisions = StudyDecisions(federation.kits / silo)
    decisions.decide(decisions.lookup(name), accepted, "Dr. North")
    visit(federation.kits / silo, asking(federation, silo))


def own_models(federation, name):
    """The silos' personal models of a study."""
    folders = {n: StudyDecisions(federation.kits / n) for n in federation.names}
    return loaded(
        {
            n: decisions.folder(decisions.lookup(name)) / "models" / "personal.safetensors"
            for n, decisions in folders.items()
            if any(k.study.name == name for k in decisions.all)
        }
    )


@pytest.fixture
def federation(world):
    """Three silos whose kits come with a study."""
    return world.federation()


def test_a_second_study_runs_after_the_first_and_gives_the_models_of_a_simulation(
    world, federation
):
    federation.run()
    queue = StudyQueue(federation.server)
    submitted = queue.submit(study_file(federation, "second"))
    assert queue.state(queue.study("second")) == "proposed"
    assert status.server(federation.server, "second")["state"] == "proposed"
    for silo in federation.names:
        [line] = proposals(federation, silo)
        assert submitted.agreement[:16] in line
        assert queue.next() is None
        decided(federation, silo, "second")
    assert queue.next() == queue.study("second")
    federation.run("second")
    assert queue.state(queue.study("second")) == "finished"
    assert queue.next() is None
    assert queue.has_run
    simulated = world.simulated(federation)
    assert equal(own_models(federation, "second"), simulated)
    line = next(r for r in audited(federation.kits / "silo-0/state", "accepted"))
    assert (line["by"], line["agreement"]) == ("Dr. North", submitted.agreement)
    assert audit_log.verify(federation.kits / "silo-0/state/audit.jsonl") is None
    state, rounds = status.silo(federation.kits / "silo-0"), submitted.study.run["rounds"]
    assert (state["round"], [row["round"] for row in state["studies"]]) == (rounds, [rounds])


def test_nothing_runs_at_a_silo_that_has_not_accepted(federation):
    StudyQueue(federation.server).submit(study_file(federation, "second", wait=0.0))
    for silo in federation.names:
        proposals(federation, silo)
    with pytest.raises(QuorumError):
        federation.run("second")
    assert read_status(federation.server / "run/studies/second").code == 7
    assert own_models(federation, "second") == {}
    reasons = [r["reason"] for r in audited(federation.kits / "silo-1/state", "refused")]
    assert reasons
    assert all("waits for this silo's administrator" in reason for reason in reasons)


def test_a_silo_that_declines_is_left_out_and_not_waited_for(world, federation):
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second", wait=3600.0))
    for silo, accepted in zip(federation.names, (True, False, True), strict=True):
        proposals(federation, silo)
        decided(federation, silo, "second", accepted)
    assert queue.state(queue.study("second")) == "queued"
    federation.run("second")
    models = own_models(federation, "second")
    assert set(models) == {"silo-0", "silo-2"}
    names = {r.get("silo") for r in audited(federation.server / "run", "sent")}
    assert names == {"silo-0", "silo-2"}
    unused = uplinks(federation.server, "silo-1")["unused"]
    assert {row["reason"] for row in unused} == {Reason.DECLINED}


def test_a_study_that_too_many_decline_never_runs(federation):
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second", quorum=3))
    assert not queue.has_run
    proposals(federation, "silo-1")
    decided(federation, "silo-1", "second", accepted=False)
    assert queue.state(queue.study("second")) == "declined"
    assert [study.name for study in queue.open] == ["kit"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quorum": 3}, "needs 3 silos, and there are 2 members"),
        ({"run": {"secure_aggregation": {"minimum": 3, "max_norm": 1.0}}}, "there are 2 members"),
        ({"run": {"model": {"name": "fasttext"}}}, "fasttext takes texts"),
        ({"run": {"model": {"name": "resnet-18"}}}, "unknown model 'resnet-18'; .*resnet18"),
    ],
)
def test_what_no_silo_could_ever_run_is_refused_when_it_is_submitted(changes, message, federation):
    dismiss(federation.server, "silo-2")
    changes = dict(changes)
    run = {**tomllib.loads(federation.toml.read_text())["run"], **changes.pop("run", {})}
    with pytest.raises(ConfigError, match=message):
        StudyQueue(federation.server).submit(
            study_file(federation, "second", **changes, run={**run, "method": "fedavg"})
        )
    assert StudyQueue(federation.server).open[1:] == []


def test_a_quorum_that_is_lowered_in_the_federations_file_holds_for_its_studies(world):
    federation = world.federation(quorum=3)
    queue, path = StudyQueue(federation.server), study_file(federation, "second", wait=0.0)
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if "quorum" not in line)
    )
    queue.submit(path)
    proposals(federation, "silo-1")
    decided(federation, "silo-1", "second", accepted=False)
    assert queue.state(queue.study("second")) == "declined"
    settings = federation.server / "federation.toml"
    settings.write_text(settings.read_text().replace("quorum = 3", "quorum = 2"))
    queue = StudyQueue(federation.server)
    assert queue.state(queue.study("second")) == "proposed"
    for silo in ("silo-0", "silo-2"):
        proposals(federation, silo)
        decided(federation, silo, "second")
    assert queue.state(queue.study("second")) == "queued"
    federation.run("second")
    assert set(own_models(federation, "second")) == {"silo-0", "silo-2"}


def test_a_newcomer_that_opens_a_declined_study_again_does_not_do_so_unseen(world, capsys):
    federation = world.federation(places=4)
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second", quorum=2))
    for silo in ("silo-1", "silo-2"):
        proposals(federation, silo)
        decided(federation, silo, "second", accepted=False)
    assert queue.state(queue.study("second")) == "declined"
    add(federation.kits, "late")
    key = federation.server / "keys" / "late.pub"
    with pytest.raises(SystemExit, match="0"):
        main(["server", "add", "late", "--key", str(key), "--folder", str(federation.server)])
    last = list(audit_log.complete_lines(federation.server / "run" / "audit.jsonl"))[-1]
    assert (last["event"], last["silo"]) == ("added", "late")
    queue = StudyQueue(federation.server)
    assert queue.state(queue.study("second")) == "proposed"
    assert "study second, which was declined, is open again" in capsys.readouterr().out
    assert Consents(queue.study("second").folder).declined == {"silo-1", "silo-2"}


def test_those_who_say_nothing_are_waited_for_no_longer_than_agreed(federation):
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "patient", decide=3600.0))
    queue.submit(study_file(federation, "hasty", decide=0.0))
    proposals(federation, "silo-0")
    reasons = {row["study"]: row["why"] for row in overview(federation.server)}
    assert "0 of 1 needed" in reasons["hasty"]
    assert not reasons["patient"]
    for name in ("patient", "hasty"):
        decided(federation, "silo-0", name)
    assert queue.state(queue.study("patient")) == "proposed"
    assert queue.state(queue.study("hasty")) == "queued"
    assert not any(row["why"] for row in overview(federation.server))


def test_a_decision_can_be_taken_back_by_declining(federation):
    queue = StudyQueue(federation.server)
    queue.submit(
        study_file(
            federation,
            "second",
            wait=0.0,
            run={**tomllib.loads(federation.toml.read_text())["run"]},
        )
    )
    proposals(federation, "silo-0")
    decided(federation, "silo-0", "second")
    decided(federation, "silo-0", "second", accepted=False)
    assert Consents(queue.study("second").folder).declined == {"silo-0"}
    with pytest.raises(QuorumError):
        federation.run("second")


def test_studies_run_in_their_order_and_an_aborted_one_is_passed_over(federation):
    queue = StudyQueue(federation.server)
    for name in ("one", "two", "three"):
        queue.submit(study_file(federation, name, decide=0.0))
        proposals(federation, "silo-0")
        decided(federation, "silo-0", name)
    assert queue.next().name == "kit"
    federation.run()
    assert queue.next().name == "one"
    queue.abort("one")
    assert queue.next().name == "two"
    queue.resume("one")
    entries = list(audit_log.complete_lines(federation.server / "run" / "audit.jsonl"))[-2:]
    assert [(line["event"], line["study"]) for line in entries] == [
        ("aborted", "one"),
        ("resumed", "one"),
    ]
    assert queue.next().name == "one"
    with pytest.raises(ConfigError, match="only a study that failed"):
        queue.resume("one")
    with pytest.raises(ConfigError, match="already"):
        queue.submit(study_file(federation, "one"))


@pytest.mark.parametrize("resume", [False, True])
def test_a_submitted_study_that_failed_last_is_continued_by_resume(federation, resume, monkeypatch):
    """The kit's own study has finished; the server has ended with the second one's code 7."""
    queue, studies = StudyQueue(federation.server), []
    for name in ("second", "third"):
        queue.submit(study_file(federation, name, decide=0.0))
    results = {"kit": ("finished", 0), "third": ("failed", 8), "second": ("failed", 7)}
    for moment, (name, (state, code)) in enumerate(results.items()):
        recorded = Status(state=state, round=1, code=code, time=moment)
        write_status(queue.study(name).folder, recorded)
    monkeypatch.setattr(launcher, "require_ready", lambda *_: None)
    monkeypatch.setattr(launcher, "_flower", lambda *_: {})
    monkeypatch.setattr(
        launcher,
        "_served",
        lambda folder, *_: (
            studies.append(StudyQueue(folder).next()) or Status(state="running", round=1)
        ),
    )
    launcher.serve(federation.server, lambda _: None, resume=resume)
    assert [study.name for study in studies] == (["second"] if resume else [])
    assert queue.state(queue.study("third")) == "failed"


def test_the_gate_reads_the_federations_file_as_often_for_many_studies_as_for_one(
    federation, monkeypatch
):
    read, counted = Federation.read, []
    monkeypatch.setattr(Federation, "read", lambda path: counted.append(path) or read(path))
    visit = StudyVisit(silo="silo-0").model_dump_json().encode()

    def reads():
        counted.clear()
        assert StudyRequests(federation.server).answer("silo-0", STUDIES, visit)[0] == 200
        return len(counted)

    counts = set()
    for name in ("one", "two", "three"):
        StudyQueue(federation.server).submit(study_file(federation, name))
        counts.add(reads())
    assert len(counts) == 1


def test_every_study_has_a_hash_of_its_own_although_its_terms_are_those_of_another(federation):
    queue = StudyQueue(federation.server)
    hashes = {queue.submit(study_file(federation, name)).agreement for name in ("one", "two")}
    assert len(hashes | {queue.federation.agreement}) == 3


# What a server, or a silo, may send


def test_a_study_whose_text_is_not_what_its_hash_says_is_not_taken_in(federation):
    queue = StudyQueue(federation.server)
    submitted = queue.submit(study_file(federation, "second"))
    post = asking(federation, "silo-0")

    def swapped(path, body):
        text = post(path, body)
        return text if path == STUDIES else text.replace(b'"rounds":3', b'"rounds":9')

    messages = []
    consider(federation.kits / "silo-0", swapped, messages.append)
    assert "another hash" in messages[0]
    assert StudyDecisions(federation.kits / "silo-0").find(submitted.agreement) is None


@pytest.mark.parametrize(
    "run",
    [
        {"method": {"name": "os:system"}},
        {"model": {"name": "antigravity:geohash"}},
        {"model": {"name": "mlp", "hidden": [8], "loss": "this:s"}},
        {"metric": "-os:getcwd"},
        {"metric": "torchvision:set_image_backend"},
        {"method": {"name": "timm:create_model"}},
        {"model": {"name": "mlp", "hidden": [8], "loss": "monai:print_config"}},
        {"model": {"name": "mlp", "hidden": [8], "init": "/etc/passwd", "init_sha256": "0" * 64}},
    ],
)
def test_no_code_and_no_file_that_the_server_names_is_touched(federation, run, monkeypatch):
    terms = tomllib.loads(federation.toml.read_text())
    study = study_of({"name": "evil", "run": {**terms["run"], **run}, "task": terms["task"]})

    def fails(*_):
        pytest.fail("something of the study was resolved")

    monkeypatch.setattr("pomona_federation.agreement.StudyAgreement.config", fails)
    answers = {
        STUDIES: b'{"studies": ["%s"]}' % (b"a" * 64),
        f"{STUDIES}/{'a' * 64}": study.text.encode(),
    }
    messages = []
    consider(federation.kits / "silo-0", lambda path, _: answers[path], messages.append)
    assert "own code" in messages[0] or "by its path" in messages[0]
    assert StudyDecisions(federation.kits / "silo-0").all == []


def test_a_decision_in_another_silos_name_or_with_another_key_is_refused(federation):
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second"))
    proposals(federation, "silo-0")
    decisions = StudyDecisions(federation.kits / "silo-0")
    decisions.decide(decisions.lookup("second"), True, "somebody")
    with pytest.raises(ProtocolError, match="another silo's name"):
        visit(federation.kits / "silo-0", asking(federation, "silo-1"))
    bodies = []
    visit(
        federation.kits / "silo-0",
        lambda *request: bodies.append(request[1]) or asking(federation, "silo-0")(*request),
    )
    assert Consents(queue.study("second").folder).decisions["silo-0"].accepted
    forged = StudyVisit.model_validate_json(bodies[0])
    [signed] = forged.decisions
    forged = forged.model_copy(
        update={
            "silo": "silo-1",
            "decisions": (
                signed.model_copy(
                    update={"decision": signed.decision.model_copy(update={"silo": "silo-1"})}
                ),
            ),
        }
    )
    status, text = StudyRequests(federation.server).answer(
        "silo-1", STUDIES, forged.model_dump_json().encode()
    )
    assert (status, b"signature" in text) == (400, True)
    assert set(Consents(queue.study("second").folder).decisions) == {"silo-0"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"silo": "../x"}',
        b'{"silo": "silo-0", "decisions": 3}',
        b"\xff",
    ],
)
def test_a_visit_that_is_none_is_refused_in_one_line(federation, body):
    status, text = StudyRequests(federation.server).answer("silo-0", STUDIES, body)
    assert status == 400
    assert text.count(b"\n") == 1


def test_a_path_that_is_no_hash_names_no_study(federation):
    StudyQueue(federation.server).submit(study_file(federation, "second"))
    for path in ("", "..", "../second/study.json", "0" * 64):
        assert StudyRequests(federation.server).answer("silo-0", f"{STUDIES}/{path}", b"")[0] == 404


def test_a_study_that_no_silo_could_read_is_not_submitted(federation, monkeypatch):
    monkeypatch.setattr("pomona_federation.server.study_queue.LONGEST", 100)
    with pytest.raises(ConfigError, match="no silo reads"):
        StudyQueue(federation.server).submit(study_file(federation, "second"))
    assert [study.name for study in StudyQueue(federation.server).all] == ["kit"]


def test_two_studies_are_not_submitted_at_once(federation):
    """They would take the same number, or the same name."""
    with locked(federation.server / "run/studies"), pytest.raises(LockedError):
        StudyQueue(federation.server).submit(study_file(federation, "second"))
    assert StudyQueue(federation.server).submit(study_file(federation, "second")).number == 1


def test_a_decision_is_told_at_once_where_the_server_can_be_reached(
    federation, monkeypatch, capsys
):
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second"))
    for silo in ("silo-0", "silo-1"):
        proposals(federation, silo)
    with suppress(SystemExit):
        # no server listens
        main(["silo", "accept", "second", "--folder", str(federation.kits / "silo-1")])
    assert "cannot be reached" in capsys.readouterr().out
    monkeypatch.setattr(
        "pomona_federation.silo.study_proposals.over_the_network",
        lambda kit: asking(federation, kit.name),
    )
    with suppress(SystemExit):
        main(["silo", "accept", "second", "--folder", str(federation.kits / "silo-0")])
    assert "the server knows" in capsys.readouterr().out
    assert set(Consents(queue.study("second").folder).decisions) == {"silo-0"}


def test_a_study_that_the_silo_has_not_heard_of_is_asked_for_before_it_is_accepted(
    federation, monkeypatch, capsys
):
    """Studies come to a silo within half a minute; its administrator may be faster."""
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second"))
    accept = ["silo", "accept", "second", "--folder", str(federation.kits / "silo-0")]
    with pytest.raises(SystemExit):
        main(accept)  # no server listens
    assert "cannot be asked" in "".join(capsys.readouterr())
    monkeypatch.setattr(
        "pomona_federation.silo.study_proposals.over_the_network",
        lambda kit: asking(federation, kit.name),
    )
    with pytest.raises(SystemExit):
        main(accept)  # by a name alone nobody accepts what has not been seen
    digits = queue.study("second").submission.agreement[:9]
    assert digits in "".join(capsys.readouterr())
    assert not Consents(queue.study("second").folder).decisions
    with suppress(SystemExit):
        main([digits if argument == "second" else argument for argument in accept])
    assert "is accepted" in capsys.readouterr().out
    assert set(Consents(queue.study("second").folder).decisions) == {"silo-0"}


def test_a_study_that_has_not_been_heard_of_is_accepted_by_its_hash(
    federation, monkeypatch, capsys
):
    queue = StudyQueue(federation.server)
    digits = queue.submit(study_file(federation, "second")).agreement[:9]
    monkeypatch.setattr(
        "pomona_federation.silo.study_proposals.over_the_network",
        lambda kit: asking(federation, kit.name),
    )
    with suppress(SystemExit):
        main(["silo", "accept", digits, "--folder", str(federation.kits / "silo-0")])
    assert "is accepted" in capsys.readouterr().out


def test_a_study_begins_with_those_who_have_accepted_if_they_are_enough(federation):
    """A newcomer that never connects holds up nobody for a week."""
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second", quorum=2))
    for silo in ("silo-0", "silo-1"):
        proposals(federation, silo)
    decided(federation, "silo-0", "second")
    with pytest.raises(ConfigError, match="1 of the 2 acceptances"):
        queue.start("second")
    decided(federation, "silo-1", "second")
    assert queue.state(queue.study("second")) == "proposed"
    assert queue.start("second") == ("silo-2",)
    last = list(audit_log.complete_lines(federation.server / "run" / "audit.jsonl"))[-1]
    assert (last["event"], last["study"]) == ("begun", "second")
    assert queue.state(queue.study("second")) == "queued"
    with pytest.raises(ConfigError, match="is queued; only a study that waits"):
        queue.start("second")


def test_start_is_the_same_as_begin(capsys):
    with pytest.raises(SystemExit):
        main(["server", "study", "start"])
    assert "abort" not in capsys.readouterr().err


def test_who_has_decided_stays_in_the_list_after_a_revoke(federation):
    StudyQueue(federation.server).submit(study_file(federation, "second"))
    proposals(federation, "silo-1")
    decided(federation, "silo-1", "second")
    dismiss(federation.server, "silo-1")
    last = list(audit_log.complete_lines(federation.server / "run" / "audit.jsonl"))[-1]
    assert (last["event"], last["silo"]) == ("revoked", "silo-1")
    (row,) = [row for row in overview(federation.server) if row["study"] == "second"]
    assert row["accepted"] == "silo-1"
    assert "silo-1" not in row["undecided"]


def test_versions_are_compared_before_anything_waits(federation, monkeypatch):
    post, kit = asking(federation, "silo-1"), federation.kits / "silo-1"
    assert versions.mismatch(compare(kit, post), "server") == ""
    assert versions.noted(federation.server / "run")["silo-1"] == versions.installed()
    ours, newer = versions.installed(), versions.installed().model_copy(update={"flower": "1.41.0"})

    def of_another_release(path, body):
        """A silo with another Flower, beside an unchanged server."""
        monkeypatch.setattr(versions, "installed", lambda: ours)
        answer = post(path, body)
        monkeypatch.setattr(versions, "installed", lambda: newer)
        return answer

    monkeypatch.setattr(versions, "installed", lambda: newer)
    reason = versions.mismatch(compare(kit, of_another_release), "server")
    assert f"the server has {ours}, here is {newer}" in reason
    assert versions.noted(federation.server / "run")["silo-1"] == newer
    with pytest.raises(ProtocolError, match="another silo's name"):
        compare(federation.kits / "silo-0", post)


def test_a_server_sees_who_is_connected_before_any_study_runs(federation):
    with locked(federation.server / "run"):
        assert {row["connected"] for row in status.server(federation.server)["silos"]} == {False}
        contacts.record(federation.server / "run", "silo-1")
        assert [
            row["silo"] for row in status.server(federation.server)["silos"] if row["connected"]
        ] == ["silo-1"]
        long_ago = time.time() - 1000
        os.utime(federation.server / "run/seen/silo-1", (long_ago, long_ago))
        assert {row["connected"] for row in status.server(federation.server)["silos"]} == {False}


def test_in_a_federation_without_keys_only_members_are_recorded_as_connected(federation):
    for silo in ("silo-1", "stranger"):
        body = StudyVisit(silo=silo).model_dump_json().encode()
        assert StudyRequests(federation.server).answer("", STUDIES, body)[0] == 200
    assert set(contacts.contacts(federation.server / "run")) == {"silo-1"}


def test_folders_are_their_owners_alone_whatever_the_umask(federation, capsys):
    umask = os.umask(0)
    try:
        path = study_file(federation, "second")
        with pytest.raises(SystemExit, match="0"):
            main(["server", "study", "submit", str(path), "--folder", str(federation.server)])
        assert os.umask(0) == 0, "the command leaves the caller's umask"
    finally:
        os.umask(umask)
    digits = StudyQueue(federation.server).study("second").submission.agreement[:16]
    assert " ".join(digits[i : i + 4] for i in (0, 4, 8, 12)) in capsys.readouterr().out
    folder = federation.server / "run" / "studies"
    paths = [folder, *folder.rglob("*")]
    assert {p.name: oct(p.stat().st_mode & 0o077) for p in paths if p.stat().st_mode & 0o077} == {}


def test_who_decides_in_an_account_without_a_name_is_its_number(federation, monkeypatch, capsys):
    """As in the kit's container."""
    StudyQueue(federation.server).submit(study_file(federation, "second"))
    proposals(federation, "silo-1")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with suppress(SystemExit):
        main(["silo", "decline", "second", "--folder", str(federation.kits / "silo-1")])
    assert "is declined by account 54321" in capsys.readouterr().out


def test_a_study_that_ended_early_is_not_called_finished(monkeypatch, capsys):
    interrupted = Status(state="interrupted", round=3, code=143, reason="aborted by the operator")
    monkeypatch.setattr("pomona_federation.server.launcher.serve", lambda *_: interrupted)
    with pytest.raises(SystemExit, match="143"):
        main(["server", "start"])
    output, err = capsys.readouterr()
    assert output == ""
    assert err == "error[INTERRUPTED]: interrupted after round 3: aborted by the operator\n"
