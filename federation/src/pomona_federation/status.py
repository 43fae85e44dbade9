"""Status of a server or a silo, read only from the files in its folder."""

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pomona.core.errors import PomonaError
from pomona.storage.run_status import read_status
from pomona_federation import certificates, versions
from pomona_federation.agreement import SHARE, Federation, StudyAgreement
from pomona_federation.server.member_registry import RegisteredMember, heavy, samples, weight_by_name
from pomona_federation.server.registry_admin import entries
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.study_requests import connected, overview
from pomona_federation.silo import history
from pomona_federation.silo.history import LastFault
from pomona_federation.silo.known_studies import KnownStudies, KnownStudy
from pomona_federation.silo.privacy_budget import overview as privacy
from pomona_federation.study import EvaluationStudy, SurveyStudy
from pomona_federation.supervision.processes import holder
from pomona_federation.supervision.status_files import (
    LIVE,
    NODE,
    WAITING,
    LiveStatus,
    NodeStatus,
    WaitingStatus,
    read_status_file,
)

Row = dict[str, Any]
ENDED = {"stopped", "revoked"}  # lines of a node's last output
WHOSE = {"certificate": ("the server's", certificates.RENEW), "authority": ("the authority's", certificates.LAST)}


def server(folder: Path, study: str | None = None) -> Row:
    """A server's status: whether it runs, its round, its silos, its traffic.

    Args:
        folder: its kit.
        study: name of a study; None for the one that runs, or ran last.

    Raises ConfigError or StorageError if the folder is not a server's kit, has no such study, or cannot be read.
    """
    queue = StudyQueue(folder)
    meant = queue.current if study is None else queue.named(study)
    federation = queue.federation
    agreed = meant.agreed(federation, folder) if meant else None
    state, work = (meant.folder, meant.at_work) if meant else (folder / "run", folder / "run")
    said, live, held = read_status(state), read_status_file(LiveStatus, work / LIVE), holder(folder / "run")
    waits, rounds = read_status_file(WaitingStatus, work / WAITING), read_status(work)
    current = bool(said and held and said.state == "running" and waits.since >= said.time)  # not from an earlier life
    members, share = entries(folder, work if meant and meant.name else None), agreed.largest_share if agreed else SHARE
    weighs, spoken = weight_by_name(samples(members), share), {**versions.noted(work), **versions.noted(folder / "run")}
    here = connected(folder) if held else frozenset()
    return {
        "federation": federation.name,
        "study": meant.title if meant else None,
        "studies": overview(folder),
        "method": _method(agreed) if agreed else "",
        "version": str(versions.own()),
        "state": _spoken(said.state if said else None, bool(held)),
        "pid": held.pid if held else None,
        "since": held.since if held else None,
        "trial": None if work == state else int(work.name),
        "round": rounds.round if rounds else 0,
        "rounds": live.rounds or (agreed.study.rounds if agreed else None),
        "code": said.code if said else None,
        "reason": said.reason if said else "",
        "waiting": {**waits.model_dump(mode="json"), "line": waits.line} if current else None,
        "bytes_down": live.bytes_down,
        "bytes_up": live.bytes_up,
        "seconds": live.seconds,
        **_certificate("certificate", None if federation.insecure else folder / "certs" / "server.crt"),
        "silos": [
            {
                "silo": member.name,
                "state": _state(member, live),
                "connected": member.name in here,
                "samples": member.size,
                "weight": weighs.get(member.name),
                "joined": member.joined,
                "left": member.left,
                "version": spoken[member.name].pomona if member.name in spoken else None,
                "why": live.why.get(member.name, ""),
            }
            for member in members
        ],
        "notes": [*_other_versions(spoken), *heavy(samples(members), share), *_turned_away(members, live)],
    }


def _method(agreed: StudyAgreement) -> str:
    """The method's name, or what is done instead; loads PyTorch only if the file leaves the method to the default."""
    study = agreed.study
    if isinstance(study, SurveyStudy | EvaluationStudy):
        return study.kind
    section = study.run.get("method")
    name = section.get("name") if isinstance(section, dict) else section
    return str(name or agreed.config.method.name)


def _state(member: RegisteredMember, live: LiveStatus) -> str:
    if member.revoked:
        return "revoked"
    for state, names in (("rejected", live.rejected), ("present", live.present), ("absent", live.absent)):
        if member.name in names:
            return state
    return "not seen yet" if member.size is None else "greeted"


def _turned_away(members: Sequence[RegisteredMember], live: LiveStatus) -> list[str]:
    """Nodes without a silo's signature, and why they got no place."""
    names = {member.name for member in members}
    return [f"{node} was turned away: {why}" for node, why in live.why.items() if node not in names]


def _other_versions(spoken: Mapping[str, versions.Versions]) -> list[str]:
    return [
        f"{name} has {said}, which this server does not work with: {versions.own()}"
        for name, said in spoken.items()
        if not said.works_with(versions.own())
    ]


def _spoken(state: str | None, held: bool) -> str:
    """State of a run; recognises a killed run although its file says "running"."""
    if state == "running" and not held:
        return "killed; `pomona server resume` continues"
    return state or ("starting" if held else "never started")


def silo(folder: Path) -> Row:
    """A silo's status: its node, its last visit, its certificate, its disk."""
    federation = Federation.read(folder / "federation.toml")
    state = folder / "state"
    held, news = holder(state), read_status_file(NodeStatus, state / "node" / NODE)
    visits, torn = history.read(state)
    rounds = federation.study.rounds if federation.study else None
    gone = "never started" if news.state is None else news.state if news.state in ENDED else "killed"
    stopped = not held
    return {
        "federation": federation.name,
        "server": federation.server,
        "version": str(versions.own()),
        "server_version": str(versions.noted(state).get("server", "")),
        "version_warning": versions.warning(state, "server"),
        "state": gone if stopped else news.state or "starting",
        "since": news.since,
        "restarts": news.restarts,
        "reason": news.reason,
        "round": _last_round(visits, rounds) if visits else None,
        "rounds": rounds,
        "own_study": federation.study is not None,
        "fault": _latest([fault] if (fault := history.last_fault(state)) else []),
        "studies": [_study(folder, known) for known in KnownStudies(folder).all],
        "last_visit": _when(state / history.FILE),
        "torn_visits": torn,
        "bytes_down": sum(v.bytes_down for v in visits),
        "bytes_up": sum(v.bytes_up for v in visits),
        "privacy": privacy(folder),
        **_certificate("authority", None if federation.insecure else folder / "certs" / "ca.crt"),
        "free_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
    }


def _study(kit: Path, known: KnownStudy) -> Row:
    """The decision on a study, and its last round here."""
    visits = [visit for home in KnownStudies(kit).homes(known) for visit in history.read(home)[0]]
    about = {"study": known.study.name, "hash": known.agreement[:16], "decision": known.status, "why": known.why}
    faults = [fault for home in KnownStudies(kit).homes(known) if (fault := history.last_fault(home))]
    return {
        **about,
        "round": _last_round(visits, known.study.rounds) if visits else 0,
        "bytes_down": sum(v.bytes_down for v in visits),
        "bytes_up": sum(v.bytes_up for v in visits),
        "fault": _latest(faults),
    }


def _last_round(visits: Sequence[history.HistoryEntry], rounds: int | None) -> int:
    """The round of the last visit; the closing visit comes after the last round and belongs to it."""
    last: int = visits[-1].round
    return last if rounds is None else min(last, rounds)


def _latest(faults: Sequence[LastFault]) -> str:
    return str(max(faults, key=lambda fault: fault.when)) if faults else ""


def _certificate(name: str, path: Path | None) -> Row:
    """The expiry date of a certificate, with a warning if it is near; None without one."""
    try:
        until = certificates.expires(path) if path else None
    except PomonaError as fault:
        return {name: None, "warning": str(fault)}
    if until is None:
        return {name: None, "warning": ""}
    said, (whose, remedy) = certificates.warning(until), WHOSE[name]
    return {name: f"{until:%Y-%m-%d}", "warning": f"{whose} certificate {said}; {remedy}" if said else ""}


def _when(path: Path) -> str | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    except OSError:
        return None
