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

from federation_in_process import LocalGrid, lost, run_study
from pomona.cli import main
from pomona.core.errors import ConfigError, PrivacyError, QuorumError
from pomona.storage.run_status import read_status
from pomona_federation import audit_log, status
from pomona_federation.agreement import Federation
from pomona_federation.cli.server import _progress as progress
from pomona_federation.flower_apps import handled
from pomona_federation.messages.message_bodies import Refusal, SurveyAnswer, SurveyQuestion
from pomona_federation.messages.message_bus import Message, packed, unpacked
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


class Standing:
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
        known = self.queue.submit(path)
        for silo in SILOS:
            self.accept(silo, name)
        return known

    def accept(self, silo, name):
        """A silo receives new studies, and its administrator accepts."""
        ask = self.hear(silo)
        known = StudyDecisions(self.kits / silo)
        known.decide(known.lookup(name), True, "Dr. North")
        visit(self.kits / silo, ask)

    def hear(self, silo):
        """A silo receives new studies."""
        ask = asking(SimpleNamespace(server=self.kits / "server"), silo)
        consider(self.kits / silo, ask, lambda _: None)
        return ask

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
        sent = [(m.metadata.dst_node_id, unpacked(m.content)) for m in self.grid.sent]
        return [(node, message) for node, message in sent if message.kind == SurveyQuestion.kind]


@pytest.fixture
def standing(tmp_path):
    """Three silos with tables, without a study."""
    return Standing(tmp_path)


def test_a_survey_gives_a_task_and_models_are_trained_by_it(standing):
    standing.submitted("look")
    result = standing.run("look")
    assert list(result.silos) == list(SILOS)
    assert standing.queue.state(standing.queue.study("look")) == "finished"
    assert (standing.out("look") / "survey.html").is_file()
    assert len(standing.questions()) == 2 * len(SILOS)
    assert all(
        told.figures.names["ward"].names == ("A", "B", "C") for told in result.silos.values()
    )
    task = tomllib.loads((standing.out("look") / "task.toml").read_text())["task"]
    assert TaskSettings.model_validate(task).preprocessing.names == ("age", "ward")
    run = {"method": "fedavg", "rounds": 2, "lr": 0.1, "model": {"name": "logistic"}}
    standing.submitted("learn", kind="train", run=run, task=task)
    run_study(standing.grid, standing.kits / "server", "learn")
    assert read_status(standing.out("learn")).state == "finished"
    lines = list(audit_log.complete_lines(standing.kits / "north/state/audit.jsonl"))
    assert [line["step"] for line in lines if line["event"] == "answered" and "step" in line] == [
        "columns",
        "figures",
    ]


def test_surveys_tell_a_column_once(standing):
    standing.submitted("first", survey={"columns": ["age"]})
    first = standing.run("first")
    path = standing.kits / "north/table.csv"
    path.write_text(path.read_text().replace("\n", "\n1", 20))
    standing.submitted("second", survey={"least": 12})
    second = standing.run("second")
    before, now = (r.silos["north"].figures.numbers["age"] for r in (first, second))
    assert set(now.values) <= set(before.values)
    assert min(now.counts) >= 12
    assert second.silos["north"].figures.names["ward"].rows == now.rows


def test_a_copy_of_the_data_under_another_view_is_told_as_before(standing):
    standing.submitted("first", survey={"columns": ["age"]})
    first = standing.run("first")
    for silo in SILOS:
        path = standing.kits / silo / "silo.toml"
        tree = tomllib.loads(path.read_text())
        copied = standing.kits / silo / "copy.csv"
        copied.write_text((standing.kits / silo / "table.csv").read_text())
        tree["views"] = {"other": {**tree["data"], "path": "copy.csv"}}
        path.write_text(tomli_w.dumps(tree))
    standing.submitted("second", view="other", survey={"columns": ["age"], "cells": 3, "seed": 5})
    second = standing.run("second")
    for silo in SILOS:
        before, now = (r.silos[silo].figures.numbers["age"].values for r in (first, second))
        assert 1 <= len(now) <= 3
        assert set(now) <= set(before)


def test_data_that_moved_are_told_as_before_also_once_they_have_grown(standing):
    standing.submitted("first", survey={"columns": ["age"]})
    first = standing.run("first")
    kit = standing.kits / "north"
    (kit / "table.csv").rename(kit / "moved.csv")
    path = kit / "silo.toml"
    tree = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**tree, "data": {**tree["data"], "path": "moved.csv"}}))
    standing.submitted("second", survey={"columns": ["age"]})
    assert standing.run("second").silos["north"].figures == first.silos["north"].figures
    moved = kit / "moved.csv"
    moved.write_text(moved.read_text() + "99,A,ill\n" * 3)
    standing.submitted("third", survey={"columns": ["age"]})
    assert standing.run("third").silos["north"].figures == first.silos["north"].figures


def test_another_label_of_the_same_rows_is_not_taken_for_the_first(standing):
    standing.submitted("first")
    standing.run("first")
    for silo in SILOS[: len(SILOS) - 1]:
        path = standing.kits / silo / "silo.toml"
        tree = tomllib.loads(path.read_text())
        label = "ward" if silo == "north" else "outcome"
        path.write_text(
            tomli_w.dumps(tree | {"views": {"other": {**tree["data"], "label_column": label}}})
        )
    path = standing.kits / "south" / "silo.toml"
    tree = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(tree | {"views": {"other": tree["data"]}}))
    standing.submitted("second", view="other", survey={"columns": ["age"]})
    second = standing.run("second")
    assert list(second.silos) == ["east", "south"]
    assert "has reported these data with other labels" in second.absent["north"]


def test_a_survey_counts_as_a_study_without_noise(standing):
    standing.submitted("look")
    path = standing.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": 5.0}))
    result = standing.run("look")
    assert list(result.silos) == ["north", "east"]
    (made,) = PrivacyBudget(standing.kits / "north").reservations
    assert (made.study, made.epsilon) == ("look", None)
    assert PrivacyBudget(standing.kits / "south").reservations == ()


def test_a_survey_with_noise_costs_its_epsilon_and_no_more(standing):
    noise = {"epsilon": 2.0, "edges": {"age": [0.0, 30.0, 60.0, 90.0]}, "classes": ["ill", "well"]}
    standing.submitted("look", survey={"noise": noise})
    for silo, most in (("south", 1.9), ("east", 2.0)):
        path = standing.kits / silo / "silo.toml"
        path.write_text(
            tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon_total": most})
        )
    result = standing.run("look")
    assert list(result.silos) == ["north", "east"]
    assert all(
        [*told.figures.numbers] == ["age"] and not told.figures.names
        for told in result.silos.values()
    )
    (made,) = PrivacyBudget(standing.kits / "east").reservations
    assert (made.epsilon, made.delta, made.spent) == (2.0, 0.0, 2.0)
    standing.submitted("again", survey={"noise": noise})
    kit = standing.kits / "east"
    with pytest.raises(PrivacyError, match="may cost epsilon 4 at delta 0 together"):
        Silo(kit, StudyDecisions(kit).lookup("again")).require_affordable()


def test_a_silo_may_bound_what_one_survey_costs(standing):
    noise = {"epsilon": 2.0, "classes": ["ill", "well"], "edges": {"age": [0.0, 50.0, 100.0]}}
    standing.submitted("look", survey={"noise": noise})
    path = standing.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon": 1.5}))
    assert list(standing.run("look").silos) == ["north", "east"]


def decided(standing, policies, survey):
    """Each silo's knowledge of a survey, by a policy of its own."""
    for silo, policy in zip(SILOS, policies, strict=True):
        said = {"kinds": ["survey"], "otherwise": "decline", **policy}
        (standing.kits / silo / "policy.toml").write_text(tomli_w.dumps(said))
    path = standing.folder / "look.toml"
    path.write_text(tomli_w.dumps({"name": "look", "kind": "survey", **survey}))
    standing.queue.submit(path)
    for silo in SILOS:
        standing.hear(silo)
    return {silo: StudyDecisions(standing.kits / silo).lookup("look") for silo in SILOS}


def test_a_policy_may_accept_surveys(standing):
    kinds = (["survey"], ["train"], ["survey", "train"])
    known = decided(standing, [{"kinds": k, "methods": ["fedavg"]} for k in kinds], {})
    assert [k.status for k in known.values()] == ["accepted", "declined", "accepted"]
    assert known["north"].why == "kind survey, least count 10, without bound"


def test_a_policy_accepts_no_survey_of_fewer_rows_than_it_says(standing):
    policies = [{}, {"least_count": 5}, {"least_count": 6}]
    known = decided(standing, policies, {"survey": {"least": 5}})
    assert [k.status for k in known.values()] == ["declined", "accepted", "declined"]
    assert known["south"].why == "survey.least = 5, fewer than least_count = 6"


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


def test_status_names_the_page_of_a_survey(standing, capsys):
    standing.submitted("look")
    standing.run("look")
    with pytest.raises(SystemExit, match="0"):
        main(["server", "status", "--folder", str(standing.kits / "server")])
    said = capsys.readouterr().out
    assert "study look, survey: finished, page run/studies/look/survey.html" in said


def test_a_server_that_is_started_again_gets_the_same_answers(standing):
    standing.submitted("look")
    result = standing.run("look")
    (standing.out("look") / "survey.json").unlink()
    assert standing.run("look") == result
    (standing.out("look") / "columns.json").unlink()
    assert standing.run("look") == result


def test_a_silo_answers_each_step_once(standing):
    standing.submitted("look")
    standing.run("look")
    node, asked = standing.questions()[-1]
    question = SurveyQuestion.model_validate_json(asked.body)
    fewer = question.figures.model_copy(update={"columns": question.figures.columns[:1]})
    changed = question.model_copy(update={"figures": fewer})
    folder = standing.grid.folders[node]
    same = handled(folder, Message.of(question))
    assert SurveyAnswer.model_validate_json(same.body).figures
    refused = handled(folder, Message.of(changed))
    assert refused.kind == Refusal.kind
    assert "answers each step only once" in Refusal.model_validate_json(refused.body).fault


def test_a_question_that_could_not_be_answered_was_asked_nevertheless(standing):
    standing.submitted("look")
    standing.run("look")
    node, asked = standing.questions()[-1]
    question = SurveyQuestion.model_validate_json(asked.body)
    folder = standing.grid.folders[node]
    home = next((folder / "state/studies").glob("look-*"))
    (home / "survey.json").unlink()
    table = (folder / "table.csv").rename(folder / "away.csv")
    assert handled(folder, Message.of(question)).kind == Refusal.kind
    table.rename(folder / "table.csv")
    fewer = question.figures.model_copy(update={"columns": question.figures.columns[:1]})
    refused = handled(folder, Message.of(question.model_copy(update={"figures": fewer})))
    assert "answers each step only once" in Refusal.model_validate_json(refused.body).fault
    assert handled(folder, Message.of(question)).kind == SurveyAnswer.kind


def test_a_silo_that_is_gone_is_named_and_the_others_are_told(standing):
    standing.submitted("look", patience=0.0)

    def gone(message, reply):
        figures = (
            unpacked(message.content).kind == SurveyQuestion.kind
            and "columns" in unpacked(message.content).body
        )
        return lost(message) if figures and message.metadata.dst_node_id == 11 else reply

    standing.grid.faults.append(gone)
    result = standing.run("look")
    assert list(result.silos) == ["north", "south"]
    assert list(result.absent) == ["east"]
    assert "| east | - | absent: " in (standing.out("look") / "survey.md").read_text()


def test_status_names_who_was_turned_away_from_a_survey(standing, monkeypatch):
    gather = MessageExchange.gather

    def gathered(exchange, *args):
        gather(exchange, *args)
        unused = UnusedUplink(
            silo="node 99", round=0, reason=Reason.NOT_A_MEMBER, detail="its key is unknown"
        )
        exchange.handshake.turned_away["node 99"] = unused

    monkeypatch.setattr(MessageExchange, "gather", gathered)
    standing.submitted("look")
    standing.run("look")
    notes = status.server(standing.kits / "server")["notes"]
    [note] = [note for note in notes if "node 99" in note]
    assert "was turned away" in note
    assert "its key is unknown" in note


def test_too_few_answers_end_a_survey_which_can_be_resumed(standing):
    standing.submitted("look")
    standing.grid.faults.append(
        lambda message, reply: lost(message) if message.metadata.dst_node_id > 10 else reply
    )
    standing.grid.gone = {11, 12}
    with pytest.raises(QuorumError):
        standing.run("look")
    assert read_status(standing.out("look")).code == 7
    standing.grid.faults.clear()
    standing.grid.gone = set()
    standing.queue.resume("look")
    assert list(standing.run("look").silos) == list(SILOS)


@pytest.mark.parametrize(
    "change", ["columns", "rows", "nothing", "crowd", "silo", "signature", "text"]
)
def test_an_answer_that_is_not_what_was_asked_counts_as_none(standing, change):
    standing.submitted("look")

    def changed(message, reply):
        said = unpacked(reply.content)
        if (
            message.metadata.dst_node_id != 12
            or said.kind != SurveyAnswer.kind
            or 'figures":{' not in said.body
        ):
            return reply
        body = json.loads(said.body)
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
            most = 2**53 - 1
            told = {"numbers": {"age": Numbers(rest=most)}, "names": {"ward": Names(rest=most)}}
            forged = FiguresReply(rows=most, classes=Names(names=("ill",), counts=(most,)), **told)
            body["figures"] = forged.model_dump(mode="json")
        elif change == "silo":
            body["silo"] = "north"
        elif change == "signature":
            body["figures"]["withheld"] = {"age": "why"}
        text = "{" * 10**5 if change == "text" else json.dumps(body)
        forged = Message(said.kind, text, said.signature, versions=said.versions)
        if change in {"columns", "rows", "nothing", "crowd", "silo"}:
            signature = Silo(standing.kits / "south").signer.sign(said.kind, body)
            forged = Message(said.kind, text, signature, versions=said.versions)
        return FlowerMessage(packed(forged), reply_to=message)

    standing.grid.faults.append(changed)
    result = standing.run("look")
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


def test_a_silo_that_does_not_know_the_study_says_so_and_pins_nothing(standing):
    path = standing.folder / "look.toml"
    path.write_text(tomli_w.dumps({"name": "look", "kind": "survey"}))
    known = standing.queue.submit(path)
    folder = standing.kits / "north"
    refused = handled(folder, Message.of(SurveyQuestion(agreement=known.agreement, run="ab")))
    assert (
        f"does not know study {known.agreement[:16]}"
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


def test_what_is_asked_is_part_of_what_silos_accept(standing):
    one = standing.queue.submit(_file(standing, "one", {"least": 10}))
    two = standing.queue.submit(_file(standing, "two", {"least": 11}))
    federation = standing.queue.federation
    again = federation.terms_of(one.study.model_copy(update={"survey": two.study.survey}))
    assert one.agreement != again.agreement


def _file(standing, name, survey):
    path = standing.folder / f"{name}.toml"
    path.write_text(tomli_w.dumps({"name": name, "kind": "survey", "survey": survey}))
    return path


def test_a_survey_is_checked_on_raw_data_before_it_is_accepted(tmp_path):
    standing = Standing(tmp_path)
    path = tmp_path / "ages.toml"
    path.write_text(tomli_w.dumps({"name": "ages", "kind": "survey", "survey": {"least": 12}}))
    standing.queue.submit(path)
    kit = standing.kits / "north"
    # gaps, which no study may have
    (kit / "table.csv").write_text((kit / "table.csv").read_text().replace(",A,", ",,"))
    world = type("", (), {"server": standing.kits / "server", "kits": standing.kits})
    consider(kit, asking(world, "north"), lambda _: None)
    lines, leaves, _ = preflight.run(kit, "ages")
    [data] = [line for line in lines if line.check == "data"]
    assert data.result == "ok"
    assert "age, ward" in data.text
    assert {line.check for line in lines} >= {"study", "compare"}
    assert "12 rows or more" in leaves["cells"]
    assert [line for line in texts(leaves) if "fewer than 12" in line]


def test_a_silo_that_wants_more_members_answers_no_survey_of_fewer(standing):
    """Each question says how many silos are asked; south has accepted by a rule of three, north by
    one of two.
    """
    for silo, members in (("north", 2), ("south", 3), ("east", 1)):
        policy = {"kinds": ["survey"], "members": members}
        (standing.kits / silo / "policy.toml").write_text(tomli_w.dumps(policy))
    path = standing.folder / "look.toml"
    path.write_text(
        tomli_w.dumps(
            {"name": "look", "kind": "survey", "wait": 0.5, "deadline": 30.0, "decide": 0.0}
        )
    )
    standing.queue.submit(path)
    for silo in SILOS:
        visit(standing.kits / silo, standing.hear(silo))
    standing.grid.gone.add(10 + SILOS.index("east"))
    with pytest.raises(QuorumError):
        standing.run("look")
    (question,) = {m.body for _, m in standing.questions()}
    assert SurveyQuestion.model_validate_json(question).members == 2
    refused = [
        r
        for r in audit_log.complete_lines(standing.kits / "south/state/audit.jsonl")
        if r["event"] == "refused"
    ]
    assert refused[-1]["reason"] == "PROTOCOL: a task with 2 members; this silo requires at least 3"
    assert not (standing.kits / "south/state/disclosed").exists()


def test_a_survey_without_noise_costs_more_than_any_epsilon_that_a_silo_accepts(standing):
    standing.submitted("look")
    path = standing.kits / "south" / "silo.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"accept_epsilon": 1e6}))
    assert list(standing.run("look").silos) == ["north", "east"]
