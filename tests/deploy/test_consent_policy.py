"""Consent by rule: which studies a silo's policy.toml accepts, and to what it holds them."""

import hashlib
import math
import tomllib
from dataclasses import replace
from datetime import date, datetime, time, timedelta

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_preflight import command
from test_studies import asking, decided, heard, own_models, study_file

from pomona.core.errors import ConfigError, ProtocolError, QuorumError
from pomona.deploy import audit
from pomona.deploy.agreement import Federation
from pomona.deploy.server.studies.consents import Consents
from pomona.deploy.server.studies.study_queue import StudyQueue
from pomona.deploy.silo.administration import preflight
from pomona.deploy.silo.privacy.privacy_budget import Cost
from pomona.deploy.silo.studies import consent_policy
from pomona.deploy.silo.studies.consent_policy import FILE, ConsentPolicy, judged
from pomona.deploy.silo.studies.consent_terms import ConsentTerms
from pomona.deploy.silo.studies.known_studies import KnownStudies
from pomona.deploy.silo.studies.silo_in_study import Silo
from pomona.deploy.silo.studies.study_facts import StudyFacts, Traffic
from pomona.deploy.silo.studies.study_proposals import take_in, visit
from pomona.deploy.silo.tasks import task_policy
from pomona.deploy.study import Study

SOME, OTHER = "a" * 64, "b" * 64
TODAY = date(2026, 6, 15)
FACTS = StudyFacts("fedavg", "mlp", {}, Cost(1.0, 1e-5), Cost(3.0, 2e-5), Traffic(4_000_000, 2_000_000, 10))
STUDY = Study(name="second", view="later", task={"kind": "table", "input_shape": [4], "classes": ["a", "b"]})
FEDERATION = Federation.model_validate(
    {"name": "try", "server": "127.0.0.1:9", "places": 4, "silo": [{"name": "north"}, {"name": "south"}]}
)
# Each rule at its limit, where the study above still fits, and next to it, where it does not.
RULES = {
    "methods": (("apple", "fedavg"), ("apple",)),
    "models": (("mlp",), ("lenet",)),
    "views": (("", "later"), ("",)),
    "members": (4, 5),
    "accept_epsilon_total": (3.0, 2.99),
    "rounds": (10, 9),
    "mb_a_round": (6.0, 5.99),
    "mb_in_all": (60.0, 59.9),
    "not_after": (TODAY, TODAY - timedelta(days=1)),
}


def verdict(facts=FACTS, **rules):
    return judged(ConsentPolicy(kinds=("train",), **rules), STUDY, FEDERATION, facts, TODAY)


@given(st.dictionaries(st.sampled_from(sorted(RULES)), st.sampled_from((0, 1))))
def test_a_study_is_accepted_where_all_rules_fit_and_every_misfit_is_named(chosen):
    said = verdict(**{rule: RULES[rule][which] for rule, which in chosen.items()})
    misfits = sum(chosen.values())
    assert said.accepts == (misfits == 0)
    assert said.accepts or said.why.count(";") == misfits - 1


@given(st.sets(st.sampled_from((SOME, OTHER, "c" * 64))), st.sets(st.sampled_from((SOME, OTHER))))
def test_no_file_is_accepted_that_is_not_named(allowed, asked):
    said = verdict(replace(FACTS, files={f"file {name[0]}": name for name in asked}), files=tuple(allowed))
    assert said.accepts == (asked <= allowed)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_no_total_above_the_limit_is_accepted(total, most):
    facts = replace(FACTS, total=Cost(total, 1e-5))
    assert verdict(facts, accept_epsilon_total=most).accepts == (total <= most)
    assert not verdict(replace(FACTS, total=Cost(math.inf)), accept_epsilon_total=most).accepts


def test_a_kind_that_is_not_named_is_not_accepted():
    policy = ConsentPolicy.model_construct(**{**ConsentPolicy(kinds=("train",)).__dict__, "kinds": ("survey",)})
    assert "kind train" in judged(policy, STUDY, FEDERATION, FACTS, TODAY).why


minutes = st.builds(time, st.integers(0, 23), st.integers(0, 59))


@given(minutes, minutes, minutes)
def test_hours_and_their_complement_share_the_day(first, last, clock):
    def works(a, b):
        try:
            ConsentTerms(hours=f"{a:%H:%M}-{b:%H:%M}").require_time(datetime.combine(TODAY, clock))
        except ProtocolError:
            return False
        return True

    assert works(first, first)
    assert first == last or works(first, last) != works(last, first)
    assert works(first, last) or clock != first
    assert first == last or not works(first, last) or clock != last


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"kinds": []},
        {"kinds": ["spy"]},
        {"hours": "8-16"},
        {"hours": "24:00-06:00"},
        {"members": 0},
        {"rounds": -1},
        {"mb_in_all": float("inf")},
        {"files": ["../x"]},
        {"views": ["../x"]},
        {"otherwise": "accept"},
        {"epsilon": 3.0},
        {"not_before": "2026-05-01", "not_after": "2026-04-01"},
    ],
)
def test_a_policy_that_says_nothing_or_nonsense_is_refused(rules):
    with pytest.raises(ValidationError):
        ConsentPolicy.model_validate({"kinds": ["train"], **rules} if rules and "kinds" not in rules else rules)


# In a federation


@pytest.fixture
def federation(world):
    """Three silos, of which silo-0 has rules of consent."""
    return world.federation("fedavg", wait=0.5)


def ruled(federation, silo="silo-0", **rules):
    """Rules for a silo; their file's hash."""
    path = federation.kits / silo / FILE
    path.write_text(tomli_w.dumps({"kinds": ["train"], **rules}))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def known(federation, name="second", silo="silo-0"):
    return KnownStudies(federation.kits / silo).named(name)


def lines(federation, event, silo="silo-0"):
    return [line for line in audit.read(federation.kits / silo / "state/audit.jsonl") if line["event"] == event]


def submitted(federation, name="second", **changes):
    return StudyQueue(federation.server).submit(study_file(federation, name, wait=0.5, **changes)).agreement


def test_what_fits_is_accepted_told_and_run_without_a_person(federation):
    digest = ruled(federation, methods=["fedavg"], rounds=3, members=1)
    agreement = submitted(federation, decide=0.0)
    [said] = heard(federation, "silo-0")
    assert "accepted by policy.toml" in said
    [line] = lines(federation, "accepted")
    assert (line["by"], line["policy"], line["agreement"]) == (FILE, digest, agreement)
    assert "method fedavg" in line["why"]
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    federation.run("second")
    assert set(own_models(federation, "second")) == {"silo-0"}


def test_what_does_not_fit_waits_with_the_reason_and_is_judged_again_by_new_rules(federation):
    ruled(federation, methods=["apple"])
    submitted(federation)
    [said] = heard(federation, "silo-0")
    assert "method fedavg is not among apple" in said
    assert (known(federation).standing, known(federation).by) == ("pending", "")
    ruled(federation, methods=["fedavg"])
    heard(federation, "silo-0")
    assert known(federation).standing == "accepted"


def test_what_does_not_fit_is_declined_where_the_rules_say_so(federation):
    ruled(federation, methods=["apple"], otherwise="decline")
    submitted(federation)
    heard(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    assert known(federation).standing == "declined"
    assert Consents(StudyQueue(federation.server).named("second").folder).declined == {"silo-0"}


def test_what_a_person_has_decided_no_rule_decides_again(federation):
    submitted(federation)
    heard(federation, "silo-0")
    decided(federation, "silo-0", "second", accepted=False)
    ruled(federation)
    heard(federation, "silo-0")
    assert (known(federation).standing, known(federation).by) == ("declined", "Dr. North")


def test_rules_that_cannot_be_read_accept_nothing(federation):
    (federation.kits / "silo-0" / FILE).write_text("kinds = [")
    submitted(federation)
    [said] = heard(federation, "silo-0")
    assert "the rules cannot be applied" in said
    assert known(federation).standing == "pending"
    with pytest.raises(ConfigError, match=FILE):
        ConsentPolicy.of(federation.kits / "silo-0")


def test_data_that_do_not_fit_the_study_are_no_consent(federation):
    ruled(federation, otherwise="decline")
    submitted(federation, view="later")
    heard(federation, "silo-0")
    assert known(federation).standing == "declined"
    assert "[views.later]" in known(federation).why


def test_outside_its_hours_a_silo_is_absent_also_when_the_rules_have_changed_since(federation, monkeypatch):
    ruled(federation, hours="20:00-06:00")
    submitted(federation, decide=0.0)
    heard(federation, "silo-0")
    ruled(federation)  # what was accepted is held to the rules of then
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    monkeypatch.setattr(task_policy, "local_now", lambda: datetime(2026, 6, 15, 12, 0))
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "at 20:00-06:00" in lines(federation, "refused")[-1]["reason"]
    monkeypatch.setattr(task_policy, "local_now", lambda: datetime(2026, 6, 15, 23, 0))
    StudyQueue(federation.server).resume("second")
    federation.run("second")
    assert set(own_models(federation, "second")) == {"silo-0"}


def test_with_fewer_members_than_it_accepts_a_silo_does_nothing(federation):
    ruled(federation, members=2)
    submitted(federation, decide=0.0)
    heard(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "a task with 1 members" in lines(federation, "refused")[-1]["reason"]
    assert own_models(federation, "second") == {}


# What a server may try


def test_a_study_that_is_offered_again_and_again_is_one_and_stays_declined(federation):
    agreement = submitted(federation)
    for _ in range(3):
        heard(federation, "silo-0")
        take_in(federation.kits / "silo-0", agreement, asking(federation, "silo-0"))
    decided(federation, "silo-0", "second", accepted=False)
    take_in(federation.kits / "silo-0", agreement, asking(federation, "silo-0"))
    assert [k.standing for k in KnownStudies(federation.kits / "silo-0").all] == ["declined"]
    assert len(lines(federation, "proposed")) == 1


def test_a_decision_that_is_replayed_makes_no_silo_work(federation):
    submitted(federation, decide=0.0)
    heard(federation, "silo-0")
    kit, kept = federation.kits / "silo-0", []
    studies = KnownStudies(kit)
    studies.decide(studies.named("second"), True, "somebody")
    visit(kit, lambda *asked: kept.append(asked) or asking(federation, "silo-0")(*asked))
    decided(federation, "silo-0", "second", accepted=False)
    asking(federation, "silo-0")(*kept[0])
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "was declined by this silo" in lines(federation, "refused")[-1]["reason"]
    assert own_models(federation, "second") == {}


def test_a_study_that_changes_after_it_was_accepted_is_another_one(federation):
    ruled(federation, rounds=3)
    agreement = submitted(federation, decide=0.0)
    heard(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    path = federation.server / "run/studies/second/study.json"
    path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 9'))
    with pytest.raises(QuorumError):
        federation.run("second")
    assert own_models(federation, "second") == {}
    assert Silo(federation.kits / "silo-0").working_for(agreement).federation.config().rounds == 3


def test_a_study_with_more_words_than_can_be_read_is_refused_in_a_line(federation, monkeypatch):
    terms = tomllib.loads(federation.toml.read_text())
    words = [f"w{n}" for n in range(50_000)]
    task = {"kind": "text", "input_shape": [8], "classes": ["a", "b"], "vocabulary": 50_002, "words": words}
    study = Study.model_validate({"name": "wordy", "run": terms["run"], "task": task})
    monkeypatch.setattr("pomona.deploy.study.LONGEST", 2**18)
    with pytest.raises(ProtocolError, match="at most 262144 are read"):
        take_in(federation.kits / "silo-0", SOME, lambda *_: study.text.encode())
    assert KnownStudies(federation.kits / "silo-0").all == []


def test_rules_do_not_accept_what_is_beyond_the_silos_own_total(federation):
    path = federation.kits / "silo-0/silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": 5.0}))
    ruled(federation)
    submitted(federation)
    heard(federation, "silo-0")
    assert known(federation).standing == "pending"
    assert "without bound" in known(federation).why
    assert consent_policy.FILE not in {line.get("by") for line in lines(federation, "proposed")}


def test_check_says_what_the_rules_would_do(federation):
    submitted(federation)
    heard(federation, "silo-0")
    kit = federation.kits / "silo-0"

    def said():
        return next(line for line in preflight.run(kit, "second")[0] if line.check == "policy")

    assert "only a person accepts" in said().text
    ruled(federation, not_before=date(2026, 1, 1), not_after=date(2999, 12, 31))
    assert (said().result, "accepts it: kind train" in said().text) == ("ok", True)
    ruled(federation, rounds=2)
    assert (said().result, "3 rounds, more than 2" in said().text) == ("warning", True)
    assert known(federation).standing == "pending"


def test_a_person_cannot_accept_what_is_beyond_the_silos_own_total(federation, capsys):
    submitted(federation)
    heard(federation, "silo-0")
    kit = federation.kits / "silo-0"
    path = kit / "silo.toml"
    before = path.read_text()
    path.write_text(tomli_w.dumps(tomllib.loads(before) | {"accept_epsilon_total": 5.0}))
    assert command("silo", "accept", "second", "--folder", kit) == 9
    assert "without bound" in capsys.readouterr().err
    assert known(federation).standing == "pending"
    path.write_text(before)
    assert command("silo", "accept", "second", "--by", "Dr. North", "--folder", kit) == 0
    assert (known(federation).standing, known(federation).by, known(federation).terms) == (
        "accepted",
        "Dr. North",
        None,
    )
