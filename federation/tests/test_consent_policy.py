"""Consent by rule: studies that a silo's policy.toml accepts, and the limits it sets for them."""

import hashlib
import math
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from threading import Event

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from command_line import command
from pomona.core.errors import ConfigError, ProtocolError, QuorumError
from pomona_federation import audit_log
from pomona_federation.agreement import Federation
from pomona_federation.server.consents import Consents
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo import consent_policy, preflight, task_policy
from pomona_federation.silo.consent_policy import excesses, misfits
from pomona_federation.silo.consent_rules import FILE, ConsentPolicy, ConsentTerms
from pomona_federation.silo.privacy_budget import Cost
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_facts import StudyFacts, StudyText, Traffic
from pomona_federation.silo.study_proposals import add_study, visit
from pomona_federation.study import TrainingStudy, study_of
from pomona_federation.task_settings import TaskSettings
from test_studies import asking, decided, own_models, proposals, study_file

pytestmark = pytest.mark.long

SHA_A, SHA_B = "a" * 64, "b" * 64
TODAY = date(2026, 6, 15)
FACTS = StudyFacts(Cost(1.0, 1e-5), Cost(3.0, 2e-5), Traffic(4_000_000, 2_000_000, 10))
TEXT = StudyText("fedavg", "mlp", True, SHA_A, {}, ("metrics", "sample-counts"), 10, 50)
STUDY = TrainingStudy(
    name="second",
    view="later",
    task={"kind": "table", "input_shape": [4], "classes": ["a", "b"]},
    run={"secure_aggregation": {"max_norm": 1.0}},  # over 3 silos or more
)
FEDERATION = Federation.from_tree(
    {
        "name": "try",
        "server": "127.0.0.1:9",
        "places": 4,
        "silo": [{"name": "north"}, {"name": "south"}],
    }
)
# Each rule at its limit, where the study above still fits, and next to it, where it does not.
RULES = {
    "methods": (("apple", "fedavg"), ("apple",)),
    "models": (("mlp",), ("lenet",)),
    "views": (("", "later"), ("",)),
    "members": (4, 5),
    "tasks": ((SHA_B, SHA_A), (SHA_B,)),
    "acknowledge": (("sample-counts", "metrics", "training-loss"), ("sample-counts",)),
    "accept_epsilon_total": (3.0, 2.99),
    "accept_delta_total": (2e-5, 1.99e-5),
    "least_in_a_sum": (3, 4),
    "rounds": (10, 9),
    "epochs_in_all": (50, 49),
    "deadline": (7200.0, 7199.0),
    "mb_a_round": (6.0, 5.99),
    "mb_in_all": (60.0, 59.9),
    "not_after": (TODAY, TODAY - timedelta(days=1)),
}


FITTING = {rule: limits[0] for rule, limits in RULES.items()}


def breaches(text=TEXT, facts=FACTS, accepted=(), **rules):
    """Misfits of a study with some rules, all other rules being satisfied."""
    policy = ConsentPolicy(kinds=("train",), **{**FITTING, **rules})
    return [
        *misfits(policy, FEDERATION.terms_of(STUDY), text, set(accepted), TODAY),
        *excesses(policy, facts),
    ]


@given(st.dictionaries(st.sampled_from(sorted(RULES)), st.sampled_from((0, 1))))
def test_a_study_fits_where_all_rules_do_and_every_misfit_is_named(chosen):
    assert len(breaches(**{rule: RULES[rule][case] for rule, case in chosen.items()})) == sum(
        chosen.values()
    )


@given(st.sets(st.sampled_from((SHA_A, SHA_B, "c" * 64))), st.sets(st.sampled_from((SHA_A, SHA_B))))
def test_no_file_is_accepted_that_is_not_named(allowed, used):
    text = replace(TEXT, files={f"file {name[0]}": name for name in used})
    assert len(breaches(text, files=tuple(allowed))) == len(used - allowed)


@given(st.sets(st.sampled_from((SHA_A, SHA_B))), st.sets(st.sampled_from((SHA_A, SHA_B))))
def test_data_are_read_by_no_task_that_no_person_has_let_in(listed, accepted):
    assert (breaches(tasks=tuple(listed), accepted=accepted) == []) == (SHA_A in listed | accepted)


def test_nothing_past_the_noise_is_acknowledged_unless_it_is_listed():
    assert len(breaches(acknowledge=())) == 2
    assert "metrics, which its noise does not cover" in breaches(acknowledge=())[0]


def test_a_study_that_sends_single_models_fits_no_least_sum_but_one_that_sends_none():
    policy = ConsentPolicy(kinds=("train", "evaluate"), **FITTING)
    open_ = STUDY.model_copy(update={"run": {}})
    reasons = list(misfits(policy, FEDERATION.terms_of(open_), TEXT, set(), TODAY))
    assert reasons == ["single models are sent, and least_in_a_sum = 3"]
    task = STUDY.task.model_dump()
    evaluation = {"kind": "evaluate", "name": "look", "view": "later", "task": task, "evaluate": {}}
    evaluation_terms = FEDERATION.terms_of(study_of(evaluation))
    assert not list(misfits(policy, evaluation_terms, replace(TEXT, trains=False), set(), TODAY))


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_no_total_above_the_limit_is_accepted(total, limit):
    facts = replace(FACTS, total=Cost(total, 1e-5))
    assert (breaches(facts=facts, accept_epsilon_total=limit) == []) == (total <= limit)
    assert breaches(facts=replace(FACTS, total=Cost(math.inf)), accept_epsilon_total=limit)


def test_a_kind_that_is_not_named_is_not_accepted():
    policy = ConsentPolicy(kinds=("survey",), **FITTING)
    assert list(misfits(policy, FEDERATION.terms_of(STUDY), TEXT, set(), TODAY)) == [
        "kind train is not among survey"
    ]


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
        ConsentPolicy.model_validate(
            {"kinds": ["train"], **rules} if rules and "kinds" not in rules else rules
        )


# In a federation


def ruled(federation, silo="silo-0", **rules):
    """Write rules for a silo; return their file's hash."""
    path = federation.kits / silo / FILE
    path.write_text(tomli_w.dumps({"kinds": ["train"], **rules}))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry(federation, name="second", silo="silo-0"):
    return StudyDecisions(federation.kits / silo).lookup(name)


def lines(federation, event, silo="silo-0"):
    return [
        line
        for line in audit_log.complete_lines(federation.kits / silo / "state/audit.jsonl")
        if line["event"] == event
    ]


def submitted(federation, name="second", **changes):
    return (
        StudyQueue(federation.server)
        .submit(study_file(federation, name, wait=0.5, **changes))
        .agreement
    )


def test_what_fits_is_accepted_told_and_run_without_a_person(federation):
    digest = ruled(federation, methods=["fedavg"], rounds=3, members=1)
    agreement = submitted(federation, decide=0.0)
    [message] = proposals(federation, "silo-0")
    assert "accepted by policy.toml" in message
    [line] = lines(federation, "accepted")
    assert (line["by"], line["policy"], line["agreement"]) == (FILE, digest, agreement)
    assert "method fedavg" in line["why"]
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    federation.run("second")
    assert set(own_models(federation, "second")) == {"silo-0"}


def test_rules_that_two_processes_apply_at_once_are_applied_by_one(federation, monkeypatch):
    """`pomona silo studies --ask` while the supervisor's child is at it: nobody was killed."""
    ruled(federation)
    submitted(federation)
    judging, released, judged = Event(), Event(), consent_policy.verdict

    def slow(*arguments):
        judging.set()
        assert released.wait(60)
        return judged(*arguments)

    monkeypatch.setattr(consent_policy, "verdict", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(proposals, federation, "silo-0")
        assert judging.wait(60)
        second = threads.submit(proposals, federation, "silo-0")
        with suppress(TimeoutError):  # it comes as far as it can
            second.result(1.0)
        released.set()
        assert "accepted by policy.toml" in first.result()[0]
        assert all("this one waits" in line for line in second.result())


def test_what_does_not_fit_waits_with_the_reason_and_is_judged_again_by_new_rules(federation):
    ruled(federation, methods=["apple"])
    submitted(federation)
    [message] = proposals(federation, "silo-0")
    assert "method fedavg is not among apple" in message
    assert (entry(federation).status, entry(federation).by) == ("pending", "")
    ruled(federation, methods=["fedavg"])
    proposals(federation, "silo-0")
    assert entry(federation).status == "accepted"


def test_what_does_not_fit_is_declined_where_the_rules_say_so(federation):
    ruled(federation, methods=["apple"], otherwise="decline")
    submitted(federation)
    proposals(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    assert entry(federation).status == "declined"
    assert Consents(StudyQueue(federation.server).study("second").folder).declined == {"silo-0"}


def test_what_a_person_has_decided_no_rule_decides_again(federation):
    submitted(federation)
    proposals(federation, "silo-0")
    decided(federation, "silo-0", "second", accepted=False)
    ruled(federation)
    proposals(federation, "silo-0")
    assert (entry(federation).status, entry(federation).by) == ("declined", "Dr. North")


def test_rules_that_cannot_be_read_accept_nothing(federation):
    (federation.kits / "silo-0" / FILE).write_text("kinds = [")
    submitted(federation)
    [message] = proposals(federation, "silo-0")
    assert "the rules cannot be applied" in message
    assert entry(federation).status == "pending"
    with pytest.raises(ConfigError) as caught:
        ConsentPolicy.load(federation.kits / "silo-0")
    assert str(caught.value).count(FILE) == 1


def test_a_view_that_a_silo_does_not_have_is_no_consent(federation):
    ruled(federation, otherwise="decline")
    submitted(federation, view="later")
    proposals(federation, "silo-0")
    assert entry(federation).status == "declined"
    assert "[views.later]" in entry(federation).why


# What an answer tells of the data


def other_task(federation):
    """A section task that the silos' data do not fit, like one that tests whether some row has a
    value.
    """
    task = tomllib.loads(federation.toml.read_text())["task"]
    return {**task, "classes": task["classes"][:-1], "outputs": task["outputs"] - 1}


@pytest.mark.parametrize("otherwise", ["ask", "decline"])
def test_a_rule_sends_no_answer_that_depends_on_the_data(federation, otherwise):
    """The data are of ten classes, the task names nine: a server that hears "declined" knows that
    the tenth is there.
    """
    task = other_task(federation)
    sha256 = TaskSettings.model_validate(task).sha256
    ruled(federation, otherwise=otherwise, tasks=[sha256])
    submitted(federation, task=task)
    [message] = proposals(federation, "silo-0")
    assert "waits for a decision" in message
    assert (entry(federation).status, entry(federation).why[:5]) == ("pending", "DATA:")
    # judged after a look at the data
    ruled(federation, otherwise=otherwise, tasks=[sha256], accept_epsilon_total=1.0)
    submitted(federation, "third")
    proposals(federation, "silo-0")
    assert entry(federation, "third").status == "pending"
    assert "all on this data may cost without bound" in entry(federation, "third").why


@pytest.mark.parametrize(("otherwise", "status"), [("ask", "pending"), ("decline", "declined")])
def test_a_task_that_no_person_has_let_in_reads_no_data(federation, otherwise, status):
    (federation.kits / "silo-0/data/train.npz").unlink()
    ruled(federation, otherwise=otherwise)
    submitted(federation, task=other_task(federation))
    proposals(federation, "silo-0")
    assert entry(federation).status == status
    assert TaskSettings.model_validate(other_task(federation)).sha256 in entry(federation).why


def test_a_task_that_a_person_has_accepted_on_the_same_data_is_let_in(federation):
    """In another order of the keys it is the same; on another view it is another question."""
    shifted = {**tomllib.loads(federation.toml.read_text())["task"], "shift": [3.0]}
    path = federation.kits / "silo-0/silo.toml"
    settings = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**settings, "views": {"later": settings["data"]}}))
    ruled(federation)
    submitted(federation, task=shifted)
    proposals(federation, "silo-0")
    assert entry(federation).status == "pending"
    decided(federation, "silo-0", "second")
    submitted(federation, "third", task=dict(reversed(shifted.items())))
    submitted(federation, "fourth", task=shifted, view="later")
    proposals(federation, "silo-0")
    assert [entry(federation, name).status for name in ("third", "fourth")] == [
        "accepted",
        "pending",
    ]
    decided(federation, "silo-0", "second", accepted=False)
    submitted(federation, "fifth", task=shifted)
    proposals(federation, "silo-0")
    assert entry(federation, "fifth").status == "pending"


def test_outside_its_hours_a_silo_is_absent_also_when_the_rules_have_changed_since(
    federation, monkeypatch
):
    ruled(federation, hours="20:00-06:00")
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
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
    proposals(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "a task with 1 members" in lines(federation, "refused")[-1]["reason"]
    assert own_models(federation, "second") == {}


# What a server may try


def test_a_study_that_is_offered_again_and_again_is_one_and_stays_declined(federation):
    agreement = submitted(federation)
    for _ in range(3):
        proposals(federation, "silo-0")
        add_study(federation.kits / "silo-0", agreement, asking(federation, "silo-0"))
    decided(federation, "silo-0", "second", accepted=False)
    add_study(federation.kits / "silo-0", agreement, asking(federation, "silo-0"))
    assert [k.status for k in StudyDecisions(federation.kits / "silo-0").all] == ["declined"]
    assert len(lines(federation, "proposed")) == 1


def test_a_decision_that_is_replayed_makes_no_silo_work(federation):
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    kit, requests = federation.kits / "silo-0", []
    studies = StudyDecisions(kit)
    studies.decide(studies.lookup("second"), True, "somebody")
    visit(kit, lambda *request: requests.append(request) or asking(federation, "silo-0")(*request))
    decided(federation, "silo-0", "second", accepted=False)
    asking(federation, "silo-0")(*requests[0])
    with pytest.raises(QuorumError):
        federation.run("second")
    assert "was declined by this silo" in lines(federation, "refused")[-1]["reason"]
    assert own_models(federation, "second") == {}


def test_a_study_that_changes_after_it_was_accepted_is_another_one(federation):
    ruled(federation, rounds=3)
    agreement = submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    visit(federation.kits / "silo-0", asking(federation, "silo-0"))
    path = federation.server / "run/studies/second/study.json"
    path.write_text(path.read_text().replace('"rounds": 3', '"rounds": 9'))
    with pytest.raises(QuorumError):
        federation.run("second")
    assert own_models(federation, "second") == {}
    assert Silo(federation.kits / "silo-0").working_for(agreement).terms.config.rounds == 3


def test_a_study_with_more_words_than_can_be_read_is_refused_in_a_line(federation, monkeypatch):
    terms = tomllib.loads(federation.toml.read_text())
    vocabulary = [f"w{n}" for n in range(50_000)]
    task = {
        "kind": "text",
        "input_shape": [8],
        "classes": ["a", "b"],
        "vocabulary": 50_002,
        "words": vocabulary,
    }
    study = study_of({"name": "wordy", "run": terms["run"], "task": task})
    monkeypatch.setattr("pomona_federation.study.LONGEST", 2**18)
    with pytest.raises(ProtocolError, match="the limit is 262144"):
        add_study(federation.kits / "silo-0", SHA_A, lambda *_: study.text.encode())
    assert StudyDecisions(federation.kits / "silo-0").all == []


def test_rules_do_not_accept_what_is_beyond_the_silos_own_total(federation):
    path = federation.kits / "silo-0/silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": 5.0}))
    ruled(federation)
    submitted(federation)
    proposals(federation, "silo-0")
    assert entry(federation).status == "pending"
    assert "without bound" in entry(federation).why
    assert FILE not in {line.get("by") for line in lines(federation, "proposed")}


def test_check_says_what_the_rules_would_do(federation):
    submitted(federation)
    proposals(federation, "silo-0")
    kit = federation.kits / "silo-0"

    def policy():
        return next(line for line in preflight.run(kit, "second")[0] if line.check == "policy")

    assert "only a person accepts" in policy().text
    ruled(federation, not_before=date(2026, 1, 1), not_after=date(2999, 12, 31))
    assert (policy().result, "accepts it: kind train" in policy().text) == ("ok", True)
    ruled(federation, rounds=2)
    assert (policy().result, "3 rounds, more than 2" in policy().text) == ("warning", True)
    assert entry(federation).status == "pending"


def test_a_person_cannot_accept_what_is_beyond_the_silos_own_total(federation, capsys):
    submitted(federation)
    proposals(federation, "silo-0")
    kit = federation.kits / "silo-0"
    path = kit / "silo.toml"
    original_text = path.read_text()
    path.write_text(tomli_w.dumps(tomllib.loads(original_text) | {"accept_epsilon_total": 5.0}))
    assert command("silo", "accept", "second", "--folder", kit) == 9
    assert "without bound" in capsys.readouterr().err
    assert entry(federation).status == "pending"
    path.write_text(original_text)
    assert command("silo", "accept", "second", "--by", "Dr. North", "--folder", kit) == 0
    assert (entry(federation).status, entry(federation).by, entry(federation).terms) == (
        "accepted",
        "Dr. North",
        None,
    )
