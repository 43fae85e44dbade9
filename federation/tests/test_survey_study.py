"""A survey as a study: submitted, accepted, asked in two steps, with its result in the study's
folder.
"""

import json
import time
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
from flwr.app import Message as FlowerMessage

from federation_in_process import LocalGrid, audited, lost, run_study
from pomona.cli import main
from pomona.core.errors import ConfigError, PrivacyError, QuorumError
from pomona.storage.run_status import read_status
from pomona_federation import audit_log, status
from pomona_federation.agreement import Federation
from pomona_federation.cli.server import _progress as progress
from pomona_federation.flower_apps import handled
from pomona_federation.messages.message_bodies import Refusal
from pomona_federation.messages.message_bus import Message, packed, unpacked
from pomona_federation.messages.study_bodies import SurveyAnswer, SurveyQuestion
from pomona_federation.provision.provision import provision
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo import preflight
from pomona_federation.silo.outgoing_filter import texts
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_proposals import consider, visit
from pomona_federation.study import study_of
from pomona_federation.survey.result import SurveyResult
from pomona_federation.survey.settings import FiguresReply, Names, Numbers
from pomona_federation.task_settings import TaskSettings
from pomona_federation.unused_uplinks import Reason, UnusedUplink
from test_studies import asking

pytestmark = pytest.mark.long

SILOS = ("north", "east", "south")


def rows(folder, number, count=90):
    """A silo's table."""
    draw = np.random.Generator(np.random.Philox(number))
    lines = ["age,ward,outcome"]
    for k in range(count):
        age = int(draw.normal(50 + 5 * number, 12))
        lines.append(
            f"{age},{'ABC'[k % 3] if k < count - 4 else 'D'},{'ill' if age + draw.normal(0, 5) > 55 else 'well'}"
        )
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return {"name": "table", "path": "table.csv", "label_column": "outcome"}


class Group:
    """A federation without its own study, with a table at each silo."""

    def __init__(self, folder):
        self.folder, self.kits = folder, folder / "kits"
        tree = {
            "name": "wards",
            "server": "127.0.0.1:28443",
            "quorum": 2,
            "silo": [{"name": n} for n in SILOS],
        }
        (folder / "federation.toml").write_text(tomli_w.dumps(tree))
        provision(folder / "federation.toml", self.kits)
        for number, silo in enumerate(SILOS):
            path = self.kits / silo / "silo.toml"
            data = {"data": rows(self.kits / silo, number)}
            path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | data))
        self.grid = LocalGrid({10 + i: self.kits / n for i, n in enumerate(SILOS)})
        self.queue = StudyQueue(self.kits / "server")

    def submitted(self, name, **terms):
        """Submit a study, and let all silos accept it."""
        path = self.folder / f"{name}.toml"
        path.write_text(
            tomli_w.dumps({"name": name, "kind": "survey", "wait": 1.0, "deadline": 30.0, **terms})
        )
        study = self.queue.submit(path)
        for silo in SILOS:
            self.accept(silo, name)
        return study

    def accept(self, silo, name):
        """A silo receives new studies, and its administrator accepts."""
        post = self.hear(silo)
        decisions = StudyDecisions(self.kits / silo)
        decisions.decide(decisions.lookup(name), True, "Dr. North")
        visit(self.kits / silo, post)

    def hear(self, silo):
        """A silo receives new studies."""
        post = asking(SimpleNamespace(server=self.kits / "server"), silo)
        consider(self.kits / silo, post, lambda _: None)
        return post

    def run(self, name):
        """Run a study's ServerApp to its end."""
        run_study(self.grid, self.kits / "server", name)
        return self.result(name)

    def result(self, name):
        """The result of a survey."""
        return SurveyResult.model_validate_json((self.out(name) / "survey.json").read_text())

    def out(self, name):
        """The folder of a study."""
        return self.kits / "server" / "run" / "studies" / name

    def questions(self):
        """The questions sent, with the node of each."""
        messages = [(m.metadata.dst_node_id, unpacked(m.content)) for m in self.grid.sent]
        return [
            (node, message)
            for node, message in messages
            if message.message_type == SurveyQuestion.message_type
        ]


@pytest.fixture
def group(tmp_path):
    """Three silos with tables, without a study."""
    return Group(tmp_path)


def test_a_survey_gives_a_task_and_models_are_trained_by_it(group):
    group.submitted("look")
    result = group.run("look")
    assert list(result.silos) == list(SILOS)
    assert group.queue.state(group.queue.study("look")) == "finished"
    assert (group.out("look") / "survey.html").is_file()
    assert len(group.questions()) == 2 * len(SILOS)
    assert all(
        reply.figures.names["ward"].names == ("A", "B", "C") for reply in result.silos.values()
    )
    task = tomllib.loads((group.out("look") / "task.toml").read_text())["task"]
    assert TaskSettings.model_validate(task).preprocessing.names == ("age", "ward")
    run = {"method": "fedavg", "rounds": 2, "lr": 0.1, "model": {"name": "logistic"}}
    group.submitted("learn", kind="train", run=run, task=task)
    run_study(group.grid, group.kits / "server", "learn")
    assert read_status(group.out("learn")).state == "finished"
    lines = list(audit_log.complete_lines(group.kits / "north/state/audit.jsonl"))
    assert [line["step"] for line in lines if line["event"] == "answered" and "step" in line] == [
        "columns",
        "figures",
    ]


def test_surveys_tell_a_column_once(group):
    group.submitted("first", survey={"columns": ["age"]})
    first = group.run("first")
    path = group.kits / "north/table.csv"
    path.write_text(path.read_text().replace("\n", "\n1", 20))
    group.submitted("second", survey={"least": 12})
    second = group.run("second")
    earlier, later = (r.silos["north"].figures.numbers["age"] for r in (first, second))
    assert set(later.values) <= set(earlier.values)
    assert min(later.counts) >= 12
    assert second.silos["north"].figures.names["ward"].rows == later.rows


def test_a_copy_of_the_data_under_another_view_is_told_as_before(group):
    group.submitted("first", survey={"columns": ["age"]})
    first = group.run("first")
    for silo in SILOS:
        path = group.kits / silo / "silo.toml"
        tree = tomllib.loads(path.read_text())
        copied = group.kits / silo / "copy.csv"
        copied.write_text((group.kits / silo / "table.csv").read_text())
        tree["views"] = {"other": {**tree["data"], "path": "copy.csv"}}
        path.write_text(tomli_w.dumps(tree))
    group.submitted("second", view="other", survey={"columns": ["age"], "cells": 3, "seed": 5})
    second = group.run("second")
    for silo in SILOS:
        earlier, later = (r.silos[silo].figures.numbers["age"].values for r in (first, second))
        assert 1 <= len(later) <= 3
        assert set(later) <= set(earlier)


def test_data_that_moved_are_told_as_before_also_once_they_have_grown(group):
    group.submitted("first", survey={"columns": ["age"]})
    first = group.run("first")
    kit = group.kits / "north"
    (kit / "table.csv").rename(kit / "moved.csv")
    path = kit / "silo.toml"
    tree = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**tree, "data": {**tree["data"], "path": "moved.csv"}}))
    group.submitted("second", survey={"columns": ["age"]})
    assert group.run("second").silos["north"].figures == first.silos["north"].figures
    table = kit / "moved.csv"
    table.write_text(table.read_text() + "99,A,ill\n" * 3)
    group.submitted("third", survey={"columns": ["age"]})
    assert group.run("third").silos["north"].figures == first.silos["north"].figures


def test_another_label_of_the_same_rows_is_not_taken_for_the_first(group):
    group.submitted("first")
    group.run("first")
    for silo in SILOS[: len(SILOS) - 1]:
        path = group.kits / silo / "silo.toml"
        tree = tomllib.loads(path.read_text())
        label = "ward" if silo == "north" else "outcome"
        path.write_text(
            tomli_w.dumps(tree | {"views": {"other": {**tree["data"], "label_column": label}}})
        )
    path = group.kits / "south" / "silo.toml"
    tree = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(tree | {"views": {"other": tree["data"]}}))
    group.submitted("second", view="other", survey={"columns": ["age"]})
    second = group.run("second")
    assert list(second.silos) == ["east", "south"]
    assert "has reported these data with other labels" in second.absent["north"]


def test_a_survey_counts_as_a_study_without_noise(group):
    group.submitted("look")
    path = group.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": 5.0}))
    result = group.run("look")
    assert list(result.silos) == ["north", "east"]
    (reservation,) = PrivacyBudget(group.kits / "north").reservations
    assert (reservation.study, reservation.epsilon) == ("look", None)
    assert PrivacyBudget(group.kits / "south").reservations == ()


def test_a_survey_with_noise_costs_its_epsilon_and_no_more(group):
    noise = {"epsilon": 2.0, "edges": {"age": [0.0, 30.0, 60.0, 90.0]}, "classes": ["ill", "well"]}
    group.submitted("look", survey={"noise": noise})
    for silo, limit in (("south", 1.9), ("east", 2.0)):
        path = group.kits / silo / "silo.toml"
        path.write_text(
            tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": limit})
        )
    result = group.run("look")
    assert list(result.silos) == ["north", "east"]
    assert all(
        [*reply.figures.numbers] == ["age"] and not reply.figures.names
        for reply in result.silos.values()
    )
    (reservation,) = PrivacyBudget(group.kits / "east").reservations
    assert (reservation.epsilon, reservation.delta, reservation.spent) == (2.0, 0.0, 2.0)
    group.submitted("again", survey={"noise": noise})
    kit = group.kits / "east"
    with pytest.raises(PrivacyError, match="may cost epsilon 4 at delta 0 together"):
        Silo(kit, StudyDecisions(kit).lookup("again")).require_affordable()


def test_a_silo_may_bound_what_one_survey_costs(group):
    noise = {"epsilon": 2.0, "classes": ["ill", "well"], "edges": {"age": [0.0, 50.0, 100.0]}}
    group.submitted("look", survey={"noise": noise})
    path = group.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon": 1.5}))
    assert list(group.run("look").silos) == ["north", "east"]


def decisions(group, policies, survey):
    """Each silo's knowledge of a survey, by a policy of its own."""
    for silo, policy in zip(SILOS, policies, strict=True):
        rules = {"kinds": ["survey"], "otherwise": "decline", **policy}
        (group.kits / silo / "policy.toml").write_text(tomli_w.dumps(rules))
    path = group.folder / "look.toml"
    path.write_text(tomli_w.dumps({"name": "look", "kind": "survey", **survey}))
    group.queue.submit(path)
    for silo in SILOS:
        group.hear(silo)
    return {silo: StudyDecisions(group.kits / silo).lookup("look") for silo in SILOS}


def test_a_policy_may_accept_surveys(group):
    kinds = (["survey"], ["train"], ["survey", "train"])
    known_studies = decisions(group, [{"kinds": k, "methods": ["fedavg"]} for k in kinds], {})
    assert [k.status for k in known_studies.values()] == ["accepted", "declined", "accepted"]
    assert known_studies["north"].why == "kind survey, least count 10, without bound"


def test_a_policy_accepts_no_survey_of_fewer_rows_than_it_says(group):
    policies = [{}, {"least_count": 5}, {"least_count": 6}]
    known_studies = decisions(group, policies, {"survey": {"least": 5}})
    assert [k.status for k in known_studies.values()] == ["declined", "accepted", "declined"]
    assert known_studies["south"].why == "survey.least = 5, fewer than least_count = 6"


def test_status_says_how_much_of_a_study_is_left(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    survey = {"method": "survey", "state": "running", "waiting": {"until": 1600.0}, "study": "look"}
    assert progress({**survey, "round": 0}) == ", question 1 of 2: 10 min left at most"
    assert progress({**survey, "round": 1}) == ", question 2 of 2: 10 min left at most"
    assert progress({**survey, "round": 1, "waiting": None}) == ""
    run = {"method": "apple", "trial": None, "round": 4, "rounds": 10, "state": "running"}
    assert progress({**run, "seconds": 60.0}) == ", round 4 of 10, about 6 min left"
    assert progress({**run, "seconds": None}) == ", round 4 of 10"
    assert progress({**run, "seconds": 60.0, "round": 10}) == ", round 10 of 10"
    assert progress({**run, "seconds": 60.0, "state": "failed"}) == ", round 4 of 10"


def test_status_names_the_page_of_a_survey(group, capsys):
    group.submitted("look")
    group.run("look")
    with pytest.raises(SystemExit, match="0"):
        main(["server", "status", "--folder", str(group.kits / "server")])
    output = capsys.readouterr().out
    assert "study look, survey: finished, page run/studies/look/survey.html" in output


def test_a_server_that_is_started_again_gets_the_same_answers(group):
    group.submitted("look")
    result = group.run("look")
    (group.out("look") / "survey.json").unlink()
    assert group.run("look") == result
    (group.out("look") / "columns.json").unlink()
    assert group.run("look") == result


def test_a_silo_answers_each_step_once(group):
    group.submitted("look")
    group.run("look")
    node, message = group.questions()[-1]
    question = SurveyQuestion.model_validate_json(message.body)
    fewer = question.figures.model_copy(update={"columns": question.figures.columns[:1]})
    changed = question.model_copy(update={"figures": fewer})
    folder = group.grid.folders[node]
    repeated = handled(folder, Message.of(question))
    assert SurveyAnswer.model_validate_json(repeated.body).figures
    refused = handled(folder, Message.of(changed))
    assert refused.message_type == Refusal.message_type
    assert "answers each step only once" in Refusal.model_validate_json(refused.body).fault


def test_a_question_that_could_not_be_answered_was_asked_nevertheless(group):
    group.submitted("look")
    group.run("look")
    node, message = group.questions()[-1]
    question = SurveyQuestion.model_validate_json(message.body)
    folder = group.grid.folders[node]
    state = next((folder / "state/studies").glob("look-*"))
    (state / "survey.json").unlink()
    table = (folder / "table.csv").rename(folder / "away.csv")
    assert handled(folder, Message.of(question)).message_type == Refusal.message_type
    table.rename(folder / "table.csv")
    fewer = question.figures.model_copy(update={"columns": question.figures.columns[:1]})
    refused = handled(folder, Message.of(question.model_copy(update={"figures": fewer})))
    assert "answers each step only once" in Refusal.model_validate_json(refused.body).fault
    assert handled(folder, Message.of(question)).message_type == SurveyAnswer.message_type


def test_a_silo_that_is_gone_is_named_and_the_others_are_told(group):
    group.submitted("look", patience=0.0)

    def lose(message, reply):
        figures = (
            unpacked(message.content).message_type == SurveyQuestion.message_type
            and "columns" in unpacked(message.content).body
        )
        return lost(message) if figures and message.metadata.dst_node_id == 11 else reply

    group.grid.faults.append(lose)
    result = group.run("look")
    assert list(result.silos) == ["north", "south"]
    assert list(result.absent) == ["east"]
    assert "| east | - | absent: " in (group.out("look") / "survey.md").read_text()


def test_status_names_who_was_turned_away_from_a_survey(group, monkeypatch):
    gather = MessageExchange.gather

    def gathered(exchange, *args):
        gather(exchange, *args)
        unused = UnusedUplink(
            silo="node 99", round=0, reason=Reason.NOT_A_MEMBER, detail="its key is unknown"
        )
        exchange.handshake.turned_away["node 99"] = unused

    monkeypatch.setattr(MessageExchange, "gather", gathered)
    group.submitted("look")
    group.run("look")
    notes = status.server(group.kits / "server")["notes"]
    [note] = [note for note in notes if "node 99" in note]
    assert "was turned away" in note
    assert "its key is unknown" in note


def test_too_few_answers_end_a_survey_which_can_be_resumed(group):
    group.submitted("look")
    group.grid.faults.append(
        lambda message, reply: lost(message) if message.metadata.dst_node_id > 10 else reply
    )
    group.grid.gone = {11, 12}
    with pytest.raises(QuorumError):
        group.run("look")
    assert read_status(group.out("look")).code == 7
    group.grid.faults.clear()
    group.grid.gone = set()
    group.queue.resume("look")
    assert list(group.run("look").silos) == list(SILOS)


@pytest.mark.parametrize(
    "change", ["columns", "rows", "nothing", "crowd", "silo", "signature", "text"]
)
def test_an_answer_that_is_not_what_was_asked_counts_as_none(group, change):
    group.submitted("look")

    def changed(message, reply):
        answer = unpacked(reply.content)
        if (
            message.metadata.dst_node_id != 12
            or answer.message_type != SurveyAnswer.message_type
            or 'figures":{' not in answer.body
        ):
            return reply
        body = json.loads(answer.body)
        if change == "columns":
            body["figures"]["numbers"]["more"] = body["figures"]["numbers"]["age"]
        elif change == "rows":
            body["figures"]["rows"] += 1
        elif change == "nothing":  # shares of no rows are no numbers
            forged = FiguresReply(
                rows=0, numbers={"age": Numbers()}, names={"ward": Names()}, classes=Names()
            )
            body["figures"] = forged.model_dump(mode="json")
        elif change == "crowd":  # no sum with these rows is a count any more
            huge = 2**53 - 1
            data = {"numbers": {"age": Numbers(rest=huge)}, "names": {"ward": Names(rest=huge)}}
            forged = FiguresReply(rows=huge, classes=Names(names=("ill",), counts=(huge,)), **data)
            body["figures"] = forged.model_dump(mode="json")
        elif change == "silo":
            body["silo"] = "north"
        elif change == "signature":
            body["figures"]["withheld"] = {"age": "why"}
        text = "{" * 10**5 if change == "text" else json.dumps(body)
        forged = Message(answer.message_type, text, answer.signature, versions=answer.versions)
        if change in {"columns", "rows", "nothing", "crowd", "silo"}:
            signature = Silo(group.kits / "south").signer.sign(answer.message_type, body)
            forged = Message(answer.message_type, text, signature, versions=answer.versions)
        return FlowerMessage(packed(forged), reply_to=message)

    group.grid.faults.append(changed)
    result = group.run("look")
    assert list(result.silos) == ["north", "east"]
    assert result.absent["south"]


def test_what_no_survey_can_be():
    good = {"name": "look", "kind": "survey"}
    assert study_of(good).survey.least == 10
    for bad in (
        {**good, "run": {"rounds": 3}},
        {**good, "survey": {"least": 2}},
        {"name": "look", "survey": {}},
        {**good, "task": {"kind": "table", "input_shape": [4], "classes": ["a", "b"]}},
    ):
        with pytest.raises(ConfigError):
            study_of(bad)


def test_a_silo_that_does_not_know_the_study_says_so_and_pins_nothing(group):
    path = group.folder / "look.toml"
    path.write_text(tomli_w.dumps({"name": "look", "kind": "survey"}))
    study = group.queue.submit(path)
    folder = group.kits / "north"
    refused = handled(folder, Message.of(SurveyQuestion(agreement=study.agreement, run="ab")))
    assert (
        f"does not know study {study.agreement[:16]}"
        in Refusal.model_validate_json(refused.body).fault
    )
    assert not (folder / "state/agreement.json").exists()


def test_a_kit_comes_with_no_survey(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(
        tomli_w.dumps(
            {"name": "t", "server": "127.0.0.1:1234", "silo": [{"name": "a"}], "kind": "survey"}
        )
    )
    with pytest.raises(ConfigError, match="kind = 'survey' is for a study that is submitted"):
        Federation.read(path)


def test_what_is_asked_is_part_of_what_silos_accept(group):
    study_a = group.queue.submit(_file(group, "one", {"least": 10}))
    study_b = group.queue.submit(_file(group, "two", {"least": 11}))
    federation = group.queue.federation
    changed = federation.terms_of(study_a.study.model_copy(update={"survey": study_b.study.survey}))
    assert study_a.agreement != changed.agreement


def _file(group, name, survey):
    path = group.folder / f"{name}.toml"
    path.write_text(tomli_w.dumps({"name": name, "kind": "survey", "survey": survey}))
    return path


def test_a_survey_is_checked_on_raw_data_before_it_is_accepted(tmp_path):
    group = Group(tmp_path)
    path = tmp_path / "ages.toml"
    path.write_text(tomli_w.dumps({"name": "ages", "kind": "survey", "survey": {"least": 12}}))
    group.queue.submit(path)
    kit = group.kits / "north"
    # gaps, which no study may have
    (kit / "table.csv").write_text((kit / "table.csv").read_text().replace(",A,", ",,"))
    world = type("", (), {"server": group.kits / "server", "kits": group.kits})
    consider(kit, asking(world, "north"), lambda _: None)
    lines, leaves, _ = preflight.run(kit, "ages")
    [data] = [line for line in lines if line.check == "data"]
    assert data.result == "ok"
    assert "age, ward" in data.text
    assert {line.check for line in lines} >= {"study", "compare"}
    assert "12 rows or more" in leaves["cells"]
    assert [line for line in texts(leaves) if "fewer than 12" in line]


def test_a_silo_that_wants_more_members_answers_no_survey_of_fewer(group):
    """Each question says how many silos are asked; south has accepted by a rule of three, north by
    one of two.
    """
    for silo, members in (("north", 2), ("south", 3), ("east", 1)):
        policy = {"kinds": ["survey"], "members": members}
        (group.kits / silo / "policy.toml").write_text(tomli_w.dumps(policy))
    path = group.folder / "look.toml"
    path.write_text(
        tomli_w.dumps(
            {"name": "look", "kind": "survey", "wait": 0.5, "deadline": 30.0, "decide": 0.0}
        )
    )
    group.queue.submit(path)
    for silo in SILOS:
        visit(group.kits / silo, group.hear(silo))
    group.grid.gone.add(10 + SILOS.index("east"))
    with pytest.raises(QuorumError):
        group.run("look")
    (question,) = {m.body for _, m in group.questions()}
    assert SurveyQuestion.model_validate_json(question).members == 2
    refused = audited(group.kits / "south/state", "refused")
    assert refused[-1]["reason"] == "PROTOCOL: a task with 2 members; this silo requires at least 3"
    assert not (group.kits / "south/state/disclosed").exists()


def test_a_survey_without_noise_costs_more_than_any_epsilon_that_a_silo_accepts(group):
    group.submitted("look")
    path = group.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon": 1e6}))
    assert list(group.run("look").silos) == ["north", "east"]
