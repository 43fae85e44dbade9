"""A study as shown to a silo's administrator before acceptance, and a kit that came without a
study.
"""

import tomllib

import numpy as np
import pytest
import tomli_w

from command_line import command
from pomona.core.errors import ConfigError
from pomona.scenario.description import epsilons
from pomona_federation import status
from pomona_federation.agreement import OF_STUDY, Federation
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo import history, preflight, silo_report
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.silo.study_facts import facts
from test_hostile_server import edited
from test_in_process import PRIVATE
from test_studies import decided, own_models, proposals, study_file

pytestmark = pytest.mark.long


def studyless(federation):
    """The same federation without its own study."""
    for toml in (federation.toml, *federation.kits.glob("*/federation.toml")):
        tree = tomllib.loads(toml.read_text())
        toml.write_text(tomli_w.dumps({k: v for k, v in tree.items() if k not in OF_STUDY}))
    return federation


def offered(federation, name="second", **changes):
    """A study that silo-0 has received; its hash."""
    study = StudyQueue(federation.server).submit(study_file(federation, name, **changes))
    proposals(federation, "silo-0")
    return study.agreement


def checked(kit, study=None):
    lines, leaves, _ = preflight.run(kit, study)
    return {line.check: line for line in lines if line.check not in {"server", "versions"}}, leaves


def test_a_study_is_checked_before_it_is_accepted(world):
    pytest.importorskip("opacus")
    federation = world.federation("fedavg")
    kit = federation.kits / "silo-0"
    terms = tomllib.loads(federation.toml.read_text())["run"]
    privacy = {k: v for k, v in PRIVATE.items() if k != "seed"} | {"noise_multiplier": 2.0}
    agreement = offered(federation, run={**terms, "privacy": privacy, "rounds": 5}, view="later")
    lines, _ = checked(kit, "second")
    assert "[views.later]" in lines["data"].text
    edited(
        kit / "silo.toml", views={"later": tomllib.loads((kit / "silo.toml").read_text())["data"]}
    )
    lines, leaves = checked(kit, agreement[:9])
    assert not [line for line in lines.values() if line.result == "failed"]
    assert lines["study"].text.startswith("second: train on view later")
    assert lines["study"].text.endswith("pending")
    assert lines["compare"].text.replace(" ", "").startswith(agreement[:16])
    assert "5 rounds" in lines["agreement"].text
    (worst,) = epsilons(Silo.in_study(kit, "second").local)
    assert f"{worst:.3g}" in leaves["epsilon"]
    assert f"{worst:.3g}" in leaves["total"]
    assert not (kit / "state/private").exists()


def test_what_to_know_of_a_study_is_said_before_it_is_accepted(world):
    federation = world.federation("fedavg")
    kit, terms = federation.kits / "silo-0", tomllib.loads(federation.toml.read_text())["run"]
    offered(federation, run={**terms, "method": {"name": "ditto", "lambda": 20.0}})
    lines, _ = checked(kit, "second")
    assert lines["study"].text.endswith("pending")
    assert "lr x lambda = 2;" in lines["remark"].text
    offered(federation, "third", run={**terms, "method": "ifca"})
    assert (
        checked(kit, "third")[1]["tells"]
        == "which of the global models fits its training data best"
    )


def test_a_caution_about_one_trial_of_a_search_is_said(world):
    federation = world.federation("fedavg")
    kit, terms = federation.kits / "silo-0", tomllib.loads(federation.toml.read_text())["run"]
    space = {"method.lambda": [0.1, 20.0]}
    searched = {
        "kind": "search",
        "run": {**terms, "method": {"name": "ditto"}},
        "search": {"space": space},
    }
    offered(federation, **searched)
    assert "lr x lambda = 2;" in checked(kit, "second")[0]["remark"].text


def test_more_than_is_accepted_in_all_fails_the_check(world):
    pytest.importorskip("opacus")
    federation = world.federation("fedavg", run={"privacy": {**PRIVATE, "seed": None}})
    kit = federation.kits / "silo-0"
    offered(federation)
    edited(kit / "silo.toml", accept_epsilon_total=0.01)
    lines, _ = checked(kit, "second")
    assert (lines["data"].result, lines["data"].code) == ("failed", 9)


@pytest.mark.parametrize(
    ("method", "cached"),
    # whose cores are there, of 3 places
    [("fedavg", 0), ({"name": "apple", "budget": 1}, 3), ({"name": "apple"}, 0)],
)
def test_megabytes_a_round_are_those_that_a_round_takes(world, method, cached):
    """With as many places as silos; a round brings rows that the silo does not hold yet, and the
    uplink has a header.
    """
    federation = world.federation(method, places=3)
    traffic = facts(Silo(federation.kits / "silo-0")).traffic
    federation.run()
    visits, _ = history.read(federation.kits / "silo-0/state")
    assert max(visit.bytes_down for visit in visits) <= traffic.downlink
    assert visits[1].bytes_down == traffic.downlink - cached
    assert 0 <= visits[1].bytes_up - traffic.uplink < 1000


def test_a_study_that_is_no_longer_what_was_offered_fails_the_check(world):
    federation = world.federation()
    offered(federation)
    kit = federation.kits / "silo-0"
    edited(kit / "federation.toml", most_samples=12345)
    lines, _ = checked(kit, "second")
    assert "was offered as" in lines["agreement"].text


def test_a_name_that_no_study_has_is_refused(world):
    kit = world.federation().kits / "silo-0"
    lines, leaves = checked(kit, "third")
    assert "no study 'third'" in lines["study"].text
    assert not leaves
    with pytest.raises(ConfigError, match="no study"):
        silo_report.report(kit, study="third")


def test_a_study_has_a_report_of_its_own(world):
    federation = world.federation("fedavg")
    offered(federation)
    for silo in federation.names:
        proposals(federation, silo)
        decided(federation, silo, "second")
    federation.run("second")
    assert own_models(federation, "second").keys() == set(federation.names)
    kit = federation.kits / "silo-0"
    report, page = silo_report.report(kit, study="second")
    assert page == StudyDecisions(kit).folder(StudyDecisions(kit).lookup("second")) / "report.md"
    assert report.markdown() == page.read_text()
    assert not (kit / "state/report.md").exists()
    assert [(s["study"], s["decision"], s["round"]) for s in status.silo(kit)["studies"]] == [
        ("second", "accepted", 3)
    ]


def test_a_kit_without_a_study_passes_its_check(world, capsys):
    federation = studyless(world.federation())
    kit = federation.kits / "silo-0"
    assert Federation.load(kit / "federation.toml").study is None
    edited(
        kit / "silo.toml", views={"later": tomllib.loads((kit / "silo.toml").read_text())["data"]}
    )
    lines, leaves = checked(kit)
    assert {line.result for line in lines.values()} == {"ok"}
    assert "without its own study" in lines["agreement"].text
    assert (
        "samples of kind table" in lines["data"].text
        or "samples of kind image" in lines["data"].text
    )
    assert lines["view later"].text == lines["data"].text
    assert leaves == {}
    with np.load(kit / "data/train.npz") as rows:
        five = {name: rows[name][:5] for name in ("x", "y")}
    np.savez(kit / "data/train.npz", **five)  # fewer than a survey may report: no survey is offered
    assert checked(kit)[0]["data"].result == "ok"
    (kit / "data/train.npz").unlink()
    assert checked(kit)[0]["data"].code == 3
    assert command("silo", "report", "--folder", kit) == 2
    assert "came without a study" in capsys.readouterr().err
    assert command("silo", "status", "--folder", kit) == 0
    assert "came without a study" in capsys.readouterr().out
