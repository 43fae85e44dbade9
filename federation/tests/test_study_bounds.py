"""Limits on memory, computation and privacy of a study, while it is checked and by rules and
settings.
"""

import fcntl
import os
import tomllib
from dataclasses import replace

import pytest
import tomli_w

from command_line import command
from pomona import models
from pomona.config import resolve
from pomona.core.errors import QuorumError
from pomona.methods import METHODS
from pomona.methods.base import Initial
from pomona.models.parameter_space import ParameterSpace
from pomona_federation import status
from pomona_federation.messages.study_bodies import STUDIES
from pomona_federation.server.study_requests import StudyRequests
from pomona_federation.silo import consent_policy, study_facts, study_proposals
from pomona_federation.silo.consent_policy import misfits
from pomona_federation.silo.consent_rules import ConsentPolicy
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_facts import StudyText, outlined
from pomona_federation.study import EvaluationStudy, SearchStudy, TrainingStudy
from test_consent_policy import (
    FEDERATION,
    STUDY,
    TEXT,
    TODAY,
    breaches,
    entry,
    lines,
    ruled,
    submitted,
)
from test_studies import decided, own_models, proposals

pytestmark = pytest.mark.long


def built(monkeypatch, raises=None):
    """Record the networks built from here on; with ``raises``, fail instead."""
    sizes, build = [], models.build

    def counted(settings, *args, **kwargs):
        sizes.append(settings.hidden)
        if raises:
            raise raises
        return build(settings, *args, **kwargs)

    monkeypatch.setattr("pomona.scenario.network.build", counted)
    return sizes


def wide(federation, *hidden):
    """Section run with a network with these layers."""
    run = tomllib.loads(federation.toml.read_text())["run"]
    return {**run, "model": {"name": "mlp", "hidden": list(hidden)}}


@pytest.mark.parametrize(("otherwise", "status_"), [("ask", "pending"), ("decline", "declined")])
def test_a_network_beyond_the_rules_is_refused_by_its_shapes_and_never_built(
    federation, monkeypatch, otherwise, status_
):
    """64 inputs, twice 30,000 hidden, 10 outputs: 902.3 million numbers of 4 bytes, down and up, in
    3 rounds.
    """
    d = 64 * 30_000 + 30_000 + 30_000 * 30_000 + 30_000 + 30_000 * 10 + 10
    built_sizes = built(monkeypatch)
    ruled(federation, mb_in_all=50.0, otherwise=otherwise)
    submitted(federation, run=wide(federation, 30_000, 30_000))
    proposals(federation, "silo-0")
    assert (entry(federation).status, built_sizes) == (status_, [])
    assert entry(federation).why == f"{d * 4 * 2 * 3 / 1e6:.3g} MB in all, more than 50"


@pytest.mark.parametrize("method", METHODS)
def test_a_study_by_its_text_moves_what_the_methods_first_round_moves(method):
    """FedCAC's and pFedGraph's downlink follows from values; of these the text gives what is sent
    up.
    """
    if resolve({"method": method, "lr": 0.1}, {}).method.method().share:
        pytest.skip("hands out samples, and is refused in a federation")
    for model in ({"name": "mlp", "hidden": [5]}, {"name": "resnet18"}):
        image = {"kind": "image", "input_shape": [8, 8, 3], "classes": ["a", "b", "c"]}
        run = {"method": method, "model": model, "lr": 0.1, "rounds": 4, "buffers": "average"}
        terms = FEDERATION.terms_of(TrainingStudy(name="second", task=image, run=run))
        config = terms.config
        module = models.build(config.model, (3, 8, 8), 3)
        space = ParameterSpace(module, config.buffers)
        row = space.pack(module)
        first, buffers = row[: space.trained], row[space.trained :]
        initial = Initial.from_space(space, lambda _, r=first: r, buffers)
        traffic, shapes = study_facts._traffic(config, terms, initial, 7), outlined(terms)
        assert shapes == (
            replace(traffic, downlink=0) if method in {"fedcac", "pfedgraph"} else traffic
        )


@pytest.mark.parametrize(
    "raises",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] can't allocate memory: you tried to allocate "
            "3600000000 bytes"
        ),
        MemoryError(),
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("Found no NVIDIA driver on your system"),
        ZeroDivisionError("of own code"),
    ],
)
def test_whatever_one_study_raises_is_a_line_and_the_next_is_judged(
    federation, monkeypatch, raises
):
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))
    with monkeypatch.context() as patch:
        assert built(patch, raises) == []
        submitted(federation, "second", run=wide(federation, 8))
        messages = proposals(federation, "silo-0")
    assert len(messages) == 2
    assert all("waits for a decision" in line for line in messages)
    reason = (
        "MEMORY"
        if "memory" in str(raises) or isinstance(raises, MemoryError)
        else type(raises).__name__
    )
    assert entry(federation, "first").why.startswith(reason)
    rows = status.silo(federation.kits / "silo-0")["studies"]
    assert [row["why"] for row in rows] == [
        entry(federation, name).why for name in ("first", "second")
    ]
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == entry(federation, "second").status == "accepted"


def asked_in_a_process(federation):
    """Make silo-0 ask for studies in a separate process. Returns its exit code."""
    child = os.fork()
    if not child:
        try:
            proposals(federation, "silo-0")
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_study_at_which_the_process_was_killed_is_taken_in_once(federation, monkeypatch):
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))
    parse, marks = study_proposals.parse_study, federation.kits / "silo-0" / "state" / "taking-in"

    def killed(text):
        study = parse(text)
        os._exit(137) if study.name == "first" else None
        return study

    monkeypatch.setattr(study_proposals, "parse_study", killed)
    assert asked_in_a_process(federation) == 137
    (mark,) = marks.iterdir()
    submitted(federation, "second", run=wide(federation, 8))
    assert asked_in_a_process(federation) == 0
    assert entry(federation, "second").status == "accepted"
    monkeypatch.undo()
    messages = proposals(federation, "silo-0")
    assert f"was killed, probably for lack of memory; remove {mark} to try it again" in messages[0]
    mark.unlink()
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == "accepted"
    assert not list(marks.iterdir())


@pytest.mark.parametrize("moment", ["travels", "is kept"])
def test_a_machine_that_stops_while_a_study_travels_or_is_kept_marks_none(
    moment, federation, monkeypatch
):
    """A server may let a text take ten minutes; nothing of it has been read then. Once it has been
    read, its text is not what killed the process.
    """
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))
    marks, answer = federation.kits / "silo-0" / "state" / "taking-in", StudyRequests.answer

    def stops(desk, name, path, body):
        return os._exit(137) if path.startswith(f"{STUDIES}/") else answer(desk, name, path, body)

    with monkeypatch.context() as patch:
        if moment == "travels":
            patch.setattr(StudyRequests, "answer", stops)
        else:
            patch.setattr(StudyDecisions, "propose", lambda *_: os._exit(137))
        assert asked_in_a_process(federation) == 137
    assert not marks.exists() or not list(marks.iterdir())
    marks.mkdir(exist_ok=True)
    (marks / ("ab" * 32)).touch()  # of a study that is offered no more
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == "accepted"
    assert not list(marks.iterdir())


def test_a_study_at_which_the_process_was_killed_is_judged_once_by_the_same_rules(
    federation, monkeypatch
):
    """As the kernel kills it where memory is short: nothing of Python's runs."""
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))
    kit, judge = federation.kits / "silo-0", consent_policy.verdict

    def killed(policy, kit, decision):
        os._exit(137) if decision.study.name == "first" else None
        return judge(policy, kit, decision)

    monkeypatch.setattr(consent_policy, "verdict", killed)
    assert asked_in_a_process(federation) == 137
    submitted(federation, "second", run=wide(federation, 8))
    assert asked_in_a_process(federation) == 0
    assert entry(federation, "second").status == "accepted"
    row = next(row for row in status.silo(kit)["studies"] if row["study"] == "first")
    assert (row["decision"], "was killed; decide yourself" in row["why"]) == ("pending", True)
    monkeypatch.undo()
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == "pending"
    ruled(federation, models=["mlp"], rounds=10_000)
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == "accepted"


def test_rules_are_applied_to_one_study_at_a_time(federation, monkeypatch):
    """While they are applied to the first, a person decides on the second; another process waits
    for one study only, and says so.
    """
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))
    submitted(federation, "second", run=wide(federation, 8))
    kit, judge, judged, messages = federation.kits / "silo-0", consent_policy.verdict, [], []

    def slow(policy, kit, decision):
        judged.append(decision.study.name)
        decided(federation, "silo-0", "second")
        return judge(policy, kit, decision)

    monkeypatch.setattr(consent_policy, "verdict", slow)
    proposals(federation, "silo-0")
    assert judged == ["first"]
    holder = os.open(kit / study_proposals.LOCK, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def note(text):
        messages.append(text)
        os.close(holder)

    with study_proposals._exclusive(kit, note):
        assert messages == ["another process works on a study; this one waits"]


def test_whoever_ends_the_judging_leaves_the_study_as_it_was(federation, monkeypatch):
    ruled(federation, models=["mlp"])
    submitted(federation, "first", run=wide(federation, 9))

    def stopped(*_):
        raise SystemExit(143)

    with monkeypatch.context() as patch:
        patch.setattr(consent_policy, "verdict", stopped)
        with pytest.raises(SystemExit):
            proposals(federation, "silo-0")
    assert (entry(federation, "first").status, entry(federation, "first").why) == ("pending", "")
    proposals(federation, "silo-0")
    assert entry(federation, "first").status == "accepted"


def test_a_study_that_cannot_be_taken_in_keeps_no_other_out(federation, monkeypatch):
    ruled(federation)
    submitted(federation, "first")
    submitted(federation, "second")
    parse = study_proposals.parse_study

    def broken(text):
        study = parse(text)
        if study.name == "first":
            raise RecursionError("maximum recursion depth exceeded")
        return study

    monkeypatch.setattr(study_proposals, "parse_study", broken)
    messages = proposals(federation, "silo-0")
    assert "cannot be taken in: RecursionError: maximum recursion depth exceeded" in messages[0]
    assert entry(federation, "second").status == "accepted"


# What computing may cost


def test_no_computing_without_a_bound_is_accepted(federation):
    """1,000,000 local epochs in 3 rounds, where 10,000 passes and a day a round are the rules that
    hold unless set.
    """
    run = tomllib.loads(federation.toml.read_text())["run"]
    ruled(federation)
    submitted(federation, "long", run={**run, "local_epochs": 1_000_000})
    submitted(federation, "slow", deadline=1e6)
    proposals(federation, "silo-0")
    assert (
        "3000000 passes over the training data, more than epochs_in_all = 10000"
        in entry(federation, "long").why
    )
    assert "a round may take 1e+06 s, more than deadline = 86400" in entry(federation, "slow").why
    assert entry(federation, "long").status == entry(federation, "slow").status == "pending"


def test_passes_over_the_data_are_those_of_all_models_rounds_and_trials():
    """Ditto trains two models: 2 epochs of the one and 3 of the other a round, in rounds of two
    trials.
    """
    task = STUDY.task.model_dump(mode="json", by_alias=True)
    ditto = {
        "method": {"name": "ditto", "personal_epochs": 3},
        "model": "mlp",
        "lr": 0.1,
        "local_epochs": 2,
    }
    tried = SearchStudy(
        name="tried", kind="search", task=task, run=ditto, search={"space": {"rounds": [4, 5]}}
    )
    assert StudyText.from_terms(FEDERATION.terms_of(tried)).epochs == (2 + 3) * (4 + 5)
    assert (
        StudyText.from_terms(
            FEDERATION.terms_of(STUDY.model_copy(update={"run": {**ditto, "rounds": 4}}))
        ).epochs
        == 5 * 4
    )


def test_methods_are_of_studies_that_train_and_evaluations_go_by_their_kind(federation):
    """Nobody writes the name of a class into policy.toml to have models judged."""
    judged = {"of": "kit", "models": {"north": 0, "south": 1}}
    terms = FEDERATION.terms_of(
        EvaluationStudy(name="judged", kind="evaluate", task=STUDY.task, evaluate=judged)
    )
    text = StudyText.from_terms(terms)
    assert (text.trains, text.epochs, text.rounds) == (False, 0, 1)
    policy = ConsentPolicy(kinds=("train", "evaluate"), methods=("fedavg",), tasks=(text.task,))
    assert list(misfits(policy, terms, text, set(), TODAY)) == []
    assert breaches(replace(TEXT, method="apple"), methods=("fedavg",)) == [
        "method apple is not among fedavg"
    ]


def bounded(federation, **settings):
    """Further settings of silo-0."""
    path = federation.kits / "silo-0/silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | settings))


def test_without_noise_there_is_no_epsilon_that_a_bound_would_accept(federation, capsys):
    """By rule, by hand, and at a task: what has no noise costs more than any number."""
    bounded(federation, accept_epsilon=1e6)
    ruled(federation)
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    assert entry(federation).status == "pending"
    assert "accept_epsilon in silo.toml is 1e+06" in entry(federation).why
    kit = federation.kits / "silo-0"
    assert command("silo", "accept", "second", "--folder", kit) == 9
    assert "without bound, since noise does not cover it" in capsys.readouterr().err
    decided(federation, "silo-0", "second")  # past the command, as an earlier acceptance would be
    with pytest.raises(QuorumError):
        federation.run("second")
    assert lines(federation, "refused")[-1]["reason"] == "PRIVACY; the silo's log has the rest"
    assert own_models(federation, "second") == {}
