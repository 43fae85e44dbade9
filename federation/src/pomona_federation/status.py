"""Status of a server or a silo, read only from the files in its folder."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pomona.core.errors import PomonaError
from pomona.storage.run_status import read_status
from pomona_federation import certificates, versions
from pomona_federation.agreement import SHARE, Federation, StudyAgreement
from pomona_federation.server.consents import Consents
from pomona_federation.server.contacts import Contact, contacts
from pomona_federation.server.member_registry import (
    RegisteredMember,
    samples,
    weight_by_name,
    weight_notes,
)
from pomona_federation.server.registry_admin import entries
from pomona_federation.server.study_queue import StudyQueue, draining
from pomona_federation.server.study_requests import overview
from pomona_federation.silo import history
from pomona_federation.silo.privacy_budget import overview as privacy
from pomona_federation.silo.study_decisions import StudyDecision, StudyDecisions
from pomona_federation.study import EvaluationStudy, SurveyStudy
from pomona_federation.supervision.status_files import (
    LIVE,
    NODE,
    WAITING,
    LiveStatus,
    NodeStatus,
    WaitingStatus,
    read_status_file,
)
from pomona_federation.supervision.supervisor import holder
from pomona_federation.unused_uplinks import UnusedUplink

Row = dict[str, Any]
FINAL_STATES = {"stopped", "revoked"}  # lines of a node's last output
CERTIFICATES = {  # in a kit's certs: file, owner, remedy
    "certificate": ("server.crt", "the server's", certificates.RENEW),
    "authority": ("ca.crt", "the authority's", certificates.UNRENEWABLE),
}


def server(folder: Path, study: str | None = None) -> Row:
    """A server's status: whether it runs, its round, its silos, its traffic.

    Args:
        folder: its kit.
        study: name of a study; None for the one that runs, or ran last.

    Raises ConfigError or StorageError if the folder is not a server's kit, has no such study, or
    cannot be read.
    """
    queue = StudyQueue(folder)
    chosen, federation = queue.current if study is None else queue.study(study), queue.federation
    terms, state, work = None, folder / "run", folder / "run"
    if chosen:
        terms, state, work = chosen.terms(federation, folder), chosen.folder, chosen.at_work
    submitted = chosen if chosen and chosen.submission else None
    state_in_queue = queue.state(submitted) if submitted else None
    live, process = read_status_file(LiveStatus, work / LIVE), holder(folder / "run")
    members = entries(folder, work if submitted else None)
    share = getattr(terms, "largest_share", SHARE)
    versions_of = {**versions.noted(work), **versions.noted(folder / "run")}
    connections = contacts(folder / "run") if process else {}
    return {
        "federation": federation.name,
        "study": getattr(chosen, "name", None),
        "studies": overview(folder),
        "drain": _drain(folder, queue, process is not None),
        "method": _method(terms),
        "version": str(versions.installed()),
        **_fields(process, "pid", "since"),
        "trial": None if work == state else int(work.name),
        **_run(state, work, process is not None, state_in_queue),
        "sum": _sum(terms),
        "rounds": live.rounds or (terms.study.rounds if terms else None),
        **_fields(live, "bytes_down", "bytes_up", "seconds"),
        **_certificate("certificate", folder, federation),
        "silos": _silos(members, share, live, connections, versions_of, Consents(state).declined),
        "notes": [
            *_other_versions(versions_of),
            *weight_notes(samples(members), share),
            *_turned_away(members, live),
        ],
    }


def _drain(folder: Path, queue: StudyQueue, process: bool) -> str:
    """Say "draining" while a round is finished, then "drained"; "" unless that was asked for."""
    if not draining(folder / "run"):
        return ""
    running = process and any(queue.state(study) == "running" for study in queue.all)
    return "draining" if running else "drained"


def _fields(record: object, *names: str) -> Row:
    """Fields of a record; None without one."""
    return {name: getattr(record, name, None) for name in names}


def _run(state: Path, work: Path, alive: bool, queued: str | None) -> Row:
    """The state of a run, ``queued`` if it has one in the queue, its last round, and what it waits
    for, unless that is from an earlier life of the server.
    """
    status = read_status(state)
    work_status = read_status(work)
    waiting = read_status_file(WaitingStatus, work / WAITING)
    current = (
        status is not None and alive and status.state == "running" and waiting.since >= status.time
    )
    return {
        "state": _state_text(queued or getattr(status, "state", None), alive),
        "round": getattr(work_status, "round", 0),
        "code": getattr(status, "code", None),
        "reason": getattr(status, "reason", ""),
        "waiting": {**waiting.model_dump(mode="json"), "line": waiting.line} if current else None,
    }


def _silos(
    members: Sequence[RegisteredMember],
    share: float,
    live: LiveStatus,
    connections: Mapping[str, Contact],
    versions_of: Mapping[str, versions.Versions],
    declined: Collection[str],
) -> list[Row]:
    weights = weight_by_name(samples(members), share)
    return [
        {
            "silo": member.name,
            "state": _state(member, live, declined),
            **_connected(connections.get(member.name)),
            "samples": member.size,
            "weight": weights.get(member.name),
            **_fields(member, "joined", "left"),
            "version": getattr(versions_of.get(member.name), "pomona", None),
            "unused": _unused(live.unused.get(member.name)),
        }
        for member in members
    ]


def _connected(contact: Contact | None) -> Row:
    """Whether a silo is connected, and since when it is or is not; None if that is unknown."""
    changed = datetime.fromtimestamp(contact.since, UTC) if contact else None
    return {
        "connected": contact is not None and contact.connected,
        "since": changed and changed.isoformat(timespec="seconds"),
    }


def _method(terms: StudyAgreement | None) -> str:
    """The method's name, or what is done instead, "" without a study; loads PyTorch only if the
    file leaves the method to the default.
    """
    if terms is None:
        return ""
    study = terms.study
    if isinstance(study, SurveyStudy | EvaluationStudy):
        return study.kind
    section = study.run.get("method")
    name = section.get("name") if isinstance(section, dict) else section
    return str(name or terms.config.method.name)


def _sum(terms: StudyAgreement | None) -> str:
    """What secure aggregation, if agreed on, hides from this server."""
    if terms is None or terms.least_in_a_sum is None:
        return ""
    return (
        f"the server sees sums over {terms.least_in_a_sum} silos or more, no silo's own model: "
        "no norm of it is admitted or refused"
    )


def _state(member: RegisteredMember, live: LiveStatus, declined: Collection[str]) -> str:
    if member.revoked:
        return "revoked"
    if member.name in live.present:
        return "present"
    if member.name in declined:
        return "declined"
    unused = live.unused.get(member.name)
    if unused and unused.round >= max(live.round, 1):
        return unused.state
    return "not seen yet" if member.size is None else "greeted"


def _turned_away(members: Sequence[RegisteredMember], live: LiveStatus) -> list[str]:
    """Nodes without a silo's signature, and why they got no place."""
    names = {member.name for member in members}
    return [
        f"{node} was turned away: {unused.sentence}"
        for node, unused in live.unused.items()
        if node not in names
    ]


def _unused(last: UnusedUplink | None) -> Row | None:
    """The last record of a silo's uplink that was not used, with what to do."""
    return {**last.fields, "sentence": last.sentence, "remedy": last.remedy} if last else None


def _other_versions(by_name: Mapping[str, versions.Versions]) -> list[str]:
    return [
        f"{name} has {installed}, which this server does not work with: {versions.installed()}"
        for name, installed in by_name.items()
        if not installed.works_with(versions.installed())
    ]


def _state_text(state: str | None, alive: bool) -> str:
    """State of a run; recognises a killed run although its file says "running"."""
    if state == "running" and not alive:
        return "killed; `pomona server resume` continues"
    return state or ("starting" if alive else "never started")


def silo(folder: Path) -> Row:
    """A silo's status: its node, its last visit, its certificate, its disk."""
    federation, state = Federation.read(folder / "federation.toml"), folder / "state"
    node = read_status_file(NodeStatus, state / "node" / NODE)
    _, torn = history.read(state)
    rounds = federation.study.rounds if federation.study else None
    visited = _visited([state], rounds)
    return {
        "federation": federation.name,
        "server": federation.server,
        "version": str(versions.installed()),
        "server_version": str(versions.noted(state).get("server", "")),
        "version_warning": versions.warning(state, "server"),
        "state": _node_state(node, alive=holder(state) is not None),
        **_fields(node, "since", "restarts", "reason"),
        **visited,
        "rounds": rounds,
        "own_study": federation.study is not None,
        "studies": [_study(folder, study) for study in StudyDecisions(folder).all],
        "last_visit": _mtime(state / history.FILE),
        "torn_visits": torn,
        "privacy": privacy(folder),
        **_certificate("authority", folder, federation),
        "free_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
    }


def _node_state(node: NodeStatus, alive: bool) -> str:
    """State of a node; recognises a killed one although its file says something else."""
    if alive:
        return node.state or "starting"
    if node.state is None:
        return "never started"
    return node.state if node.state in FINAL_STATES else "killed"


def _visited(folders: Sequence[Path], rounds: int | None) -> Row:
    """The last round of a study here, 0 for none, its traffic and its last fault, from the folders
    of its rounds.
    """
    visits = [visit for folder in folders for visit in history.read(folder)[0]]
    faults = [fault for folder in folders if (fault := history.last_fault(folder))]
    last = visits[-1].round if visits else 0
    return {
        # the closing visit comes after the last round and belongs to it
        "round": min(last, rounds or last),
        "bytes_down": sum(v.bytes_down for v in visits),
        "bytes_up": sum(v.bytes_up for v in visits),
        "fault": str(max(faults, key=lambda fault: fault.when)) if faults else "",
    }


def _study(kit: Path, study: StudyDecision) -> Row:
    """The decision on a study, and its last round here."""
    fields = {
        "study": study.study.name,
        "hash": study.agreement[:16],
        "decision": study.status,
        "why": study.why,
    }
    return {**fields, **_visited(StudyDecisions(kit).folders(study), study.study.rounds)}


def _certificate(name: str, kit: Path, federation: Federation) -> Row:
    """The expiry date of a certificate, with a warning if it is near; None without one."""
    file, owner, remedy = CERTIFICATES[name]
    try:
        expiry = None if federation.insecure else certificates.expires(kit / "certs" / file)
    except PomonaError as fault:
        return {name: None, "warning": str(fault)}
    if expiry is None:
        return {name: None, "warning": ""}
    warning = certificates.warning(expiry)
    return {
        name: f"{expiry:%Y-%m-%d}",
        "warning": f"{owner} certificate {warning}; {remedy}" if warning else "",
    }


def _mtime(path: Path) -> str | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    except OSError:
        return None
