"""Why an uplink was not used: one record, in the audit log, in `status` and in `why`."""

import json
import os
import re
import time
from typing import get_args

import pytest

from pomona.cli import main
from pomona.core.errors import ConfigError
from pomona.federation.admission import Check
from pomona_federation.audit_log import Audit, complete_lines
from pomona_federation.messages.study_bodies import Decision
from pomona_federation.server import contacts
from pomona_federation.server.consents import Consents
from pomona_federation.server.registry_admin import uplinks
from pomona_federation.status import server
from pomona_federation.unused_uplinks import REASONS, Reason, Stage, UnusedUplink, of_refusal
from settings_pages import of_reasons
from test_faults import mistaken, tensors
from test_preflight import server_kit


def test_the_page_of_the_site_has_every_reason():
    rows = re.findall(r"^\| `([a-z-]+)` \| [a-z]+ \| .+ \| .+ \|$", of_reasons(), re.MULTILINE)
    assert rows == [reason.value for reason in Reason]


def test_every_reason_has_a_stage_and_a_remedy_and_admission_no_other():
    assert list(REASONS) == list(Reason)
    assert {reason_.stage for reason_ in REASONS.values()} == set(get_args(Stage))
    assert all(reason_.event and reason_.remedy for reason_ in REASONS.values())
    assert set(get_args(Check)) <= {reason.value for reason in Reason}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("STORAGE: its disk is full", "disk-full"),
        ("STORAGE; the silo's log has the rest", "silo-fault"),
        ("CHECKPOINT: the federation continues from round 28", "silo-state"),
        ("PRIVACY; the silo's log has the rest", "privacy"),
        ("PROTOCOL: the server runs something else", "refused-task"),
        ("a KeyError; the silo's log has the rest", "silo-fault"),
        ("", "silo-fault"),
    ],
)
def test_a_silos_own_refusal_has_a_reason(fault, reason):
    assert of_refusal(fault) == reason


def log(folder, *lines):
    (folder / "run").mkdir(exist_ok=True)
    with Audit(folder / "run" / "audit.jsonl") as audit:
        for event, fields in lines:
            audit.write(event, **fields)


def unused(silo, number, reason):
    return "unused", UnusedUplink(silo=silo, round=number, reason=reason).fields


def committed(number, *present):
    absent = [name for name in ("north", "south") if name not in present]
    return "round", {"round": number, "present": list(present), "absent": absent}


def test_why_says_of_every_round_what_the_log_says(tmp_path, capsys):
    """A round that succeeds at its second try was used; one that a resume undoes is forgotten."""
    folder, _ = server_kit(tmp_path)
    log(
        folder,
        ("start", {"round": 0}),
        unused("south", 1, "deadline"),
        committed(1, "north", "south"),
        unused("south", 2, "not-connected"),
        committed(2, "north"),
        unused("south", 3, "norm"),
        ("start", {"round": 2}),
        unused("south", 3, "not-connected"),
        committed(3, "north"),
        ("start", {"round": 0, "study": "look"}),
        unused("south", 1, "privacy"),
        ("finished", {"silos": ["north"], "absent": ["south"]}),
    )
    south = uplinks(folder, "south")
    assert (south["rounds"], south["used"]) == (4, 1)
    assert [(row["study"], row["round"], row["reason"]) for row in south["unused"]] == [
        ("kit", 2, "not-connected"),
        ("kit", 3, "not-connected"),
        ("look", 1, "privacy"),
    ]
    assert {row["remedy"] for row in south["unused"]} == {
        REASONS[Reason.NOT_CONNECTED].remedy,
        REASONS[Reason.PRIVACY].remedy,
    }
    with pytest.raises(ConfigError, match="north"):
        uplinks(folder, "nort")

    def output_of(*arguments):
        with pytest.raises(SystemExit, match="0"):
            main(["server", "why", *arguments, "--folder", str(folder)])
        return capsys.readouterr().out

    assert "north: uplink used in 4 of 4 finished rounds of all studies" in output_of("north")
    text = output_of("south")
    assert "used in 1 of 4 finished rounds of all studies" in text
    assert "2-3" in text
    assert json.loads(output_of("south", "--json")) == south


def test_why_shows_rounds_as_one_span_only_if_none_is_between_them(tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    refused = [1, 2, 5, 7]
    log(
        folder,
        *(
            event
            for number in range(1, 9)
            for event in (
                *([unused("south", number, "norm")] if number in refused else []),
                committed(number, "north", *["south"] * (number not in refused)),
            )
        ),
    )
    with pytest.raises(SystemExit, match="0"):
        main(["server", "why", "south", "--folder", str(folder)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["kit"]] == ["1-2", "5", "7"]


def test_a_silo_is_connected_since_its_node_began_or_came_back(tmp_path):
    def contact():
        return contacts.contacts(tmp_path)["south"]

    def silent(seconds):
        moment = time.time() - seconds
        os.utime(tmp_path / "seen" / "south", (moment, moment))

    contacts.record_request(tmp_path, "south", "/v1/fleet/activate-node")
    first = contact()
    assert first.connected
    silent(contacts.OFFLINE_AFTER - 5)
    contacts.record_request(tmp_path, "south", "/v1/fleet/send-node-heartbeat")
    assert contact().since == first.since
    silent(contacts.OFFLINE_AFTER + 5)
    lost = contact()
    assert (lost.connected, lost.since) == (False, lost.last_request)
    contacts.record_request(tmp_path, "south", "/v1/fleet/send-node-heartbeat")
    back = contact()
    assert back.connected
    assert back.since > first.since
    contacts.record_request(tmp_path, "south", "/v1/fleet/deactivate-node")
    assert not contact().connected
    contacts.record_request(tmp_path, "", "/v1/fleet/pull-messages")  # a federation without keys
    assert list(contacts.contacts(tmp_path)) == ["south"]


@pytest.mark.long
def test_every_round_accounts_for_every_member(world):
    """Silo-1's uplink of round 2 is too large, silo-2 never comes: each has one record a round."""
    federation = world.federation(quorum=1, wait=0.5)
    mistaken(world.patch, tensors(lambda u: {**u, "core": u["core"] * 1e6}))
    federation.grid.gone = {12}
    federation.run()
    lines = list(complete_lines(federation.server / "run" / "audit.jsonl"))
    unused = [(e["round"], e["silo"], e["reason"]) for e in lines if e["event"] == "unused"]
    absences = [(number, "silo-2", "not-connected") for number in (1, 2, 3)]
    assert sorted(unused) == sorted([(2, "silo-1", "norm"), *absences])
    for entry in (e for e in lines if e["event"] == "round"):
        assert sorted([*entry["present"], *entry["absent"]]) == federation.names
        assert entry["absent"] == [silo for n, silo, _ in sorted(unused) if n == entry["round"]]
    rows = {row["silo"]: row for row in server(federation.server)["silos"]}
    assert [rows[name]["state"] for name in federation.names] == ["present", "present", "absent"]
    assert rows["silo-0"]["unused"] is None
    assert (rows["silo-1"]["unused"]["round"], rows["silo-1"]["unused"]["reason"]) == (2, "norm")
    assert uplinks(federation.server, "silo-1")["used"] == 2
    assert uplinks(federation.server, "silo-0") == {
        "silo": "silo-0",
        "rounds": 3,
        "used": 3,
        "unused": [],
    }


@pytest.mark.long
def test_a_silo_that_declines_during_a_study_is_said_to_have_declined(world):
    federation = world.federation(quorum=2, wait=0.5)
    federation.grid.gone = {11}
    consents = Consents(federation.server / "run")
    (federation.server / "run").mkdir(exist_ok=True)
    for name in federation.names:
        decision = Decision(silo=name, study="ab" * 32, accepted=name != "silo-1")
        consents.record(decision, "cd")
    federation.run()
    assert {row["reason"] for row in uplinks(federation.server, "silo-1")["unused"]} == {"declined"}
