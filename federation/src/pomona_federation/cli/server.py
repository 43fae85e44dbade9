"""``pomona server``: start, inspect, stop and resume the server of a federation, add and revoke
silos.
"""

import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import (
    Flag,
    Json,
    about,
    echo,
    echo_stderr,
    emit,
    print_table,
    printable,
    respond,
    size,
    stdout,
)
from pomona.core.errors import ConfigError, StorageError, kind_of
from pomona.core.table import Table, of_records
from pomona_federation.agreement import Federation
from pomona_federation.cli.kits import SERVER, ServerKit
from pomona_federation.installation.contents import require_kit
from pomona_federation.server.gate import PAGE
from pomona_federation.server.settings import NAME, ServerFile

SURVEY_STEPS = 2  # the columns first, then their statistics
StandingOption = Annotated[
    bool,
    Parameter(negative="", help="wait for further studies; always on if the kit came without one"),
]


def start(
    *, folder: ServerKit = SERVER, standing: StandingOption = False, json: Json = False
) -> None:
    """Run the studies until all have ended; a started study continues after its last committed
    round.
    """
    _serve(folder, json, resume=False, persistent=standing)


def resume(
    *, folder: ServerKit = SERVER, standing: StandingOption = False, json: Json = False
) -> None:
    """Continue an interrupted or failed run; refused if there is nothing to continue."""
    _serve(folder, json, resume=True, persistent=standing)


def _serve(folder: Path, json: bool, resume: bool, persistent: bool) -> None:
    from pomona_federation.server.launcher import serve

    try:
        status = serve(folder, echo_stderr, resume, persistent)
    except KeyboardInterrupt:
        print(
            "error[INTERRUPTED]: stopped before the end; `pomona server resume` continues",
            file=sys.stderr,
        )
        sys.exit(130)
    if json:
        emit(status.model_dump())
    if status.state != "finished":
        error_kind = kind_of(status.code)
        line = f"error[{error_kind}]: {status.state} after round {status.round}: {status.reason}"
        print(printable(line), file=sys.stderr)
    elif not json:
        print(f"finished after round {status.round}")
    sys.exit(status.code or 0)


def status(
    *, folder: ServerKit = SERVER, study: str | None = None, watch: Flag = False, json: Json = False
) -> None:
    """Show the round, the silos present, absent or rejected with reasons, bytes and time.

    Parameters
    ----------
    study
        name of a study; default the running or last one
    watch
        repeat every two seconds, until Ctrl-C
    """
    from pomona_federation.status import server

    while True:
        row = server(folder, study)
        if watch and not json:
            stdout.clear()
        respond(json, row, *_described(row))
        if not watch:
            return
        try:
            time.sleep(2)
        except KeyboardInterrupt:
            return


def _progress(s: dict[str, Any]) -> str:
    """Progress of a study, with the time left; for a finished survey, its page."""
    if s["method"] != "survey":
        trial = "" if s["trial"] is None else f", trial {s['trial']}"
        rounds_left = (s["rounds"] or 0) - s["round"]
        timed = s["state"] == "running" and s["seconds"] is not None and rounds_left > 0
        left = about(s["seconds"] * rounds_left) if timed else ""
        return f"{trial}, round {s['round']} of {s['rounds']}{left}"
    if s["state"] == "finished":
        return f", page run/studies/{s['study']}/survey.html"
    if not s["waiting"]:
        return ""
    seconds = max(0.0, s["waiting"]["until"] - time.time())
    return f", question {s['round'] + 1} of {SURVEY_STEPS}: {seconds / 60:.0f} min left at most"


def _described(s: dict[str, Any]) -> Iterator[str | Table]:
    """Yield the lines and tables of a status."""
    process = f"process {s['pid']} since {s['since']}" if s["pid"] else "no server runs"
    yield f"{s['federation']}: {process}"
    yield (
        f"study {s['study']}, {s['method']}: {s['state']}{_progress(s)}"
        if s["study"]
        else "no study"
    )
    if s["drain"]:
        yield f"{s['drain']}: `pomona server undrain` ends that"
    if s["sum"]:
        yield s["sum"]
    yield s["version"]
    yield from _notices(s)
    if s["silos"]:
        yield of_records([{**silo, "unused": _last_unused(silo["unused"])} for silo in s["silos"]])
    if len(s["studies"]) > 1:
        yield of_records(s["studies"])


def _notices(s: dict[str, Any]) -> Iterator[str]:
    """What there is to say in addition to the state of the study."""
    if s["waiting"]:
        yield s["waiting"]["line"]
    if s["seconds"] is not None:
        yield (
            f"last round: {s['seconds']:.1f} s, {size(s['bytes_down'] or 0)} down, "
            f"{size(s['bytes_up'] or 0)} up"
        )
    for silo in s["silos"]:
        if silo["state"] in {"absent", "rejected"}:
            yield f"{silo['silo']}: {silo['unused']['sentence']}; {silo['unused']['remedy']}"
    if s["reason"]:
        yield f"why: {s['reason']} (code {s['code']})"
    if s["certificate"]:
        yield f"certificate valid until {s['certificate']}"
    yield from (f"warning: {warning}" for warning in (s["warning"], *s["notes"]) if warning)


def drain(*, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Finish the current round, then begin no round and no study, also after a restart, until
    `pomona server undrain`.
    """
    _drain(folder, json, enabled=True)


def undrain(*, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Let rounds and studies begin again; a running server continues the study that it stopped."""
    _drain(folder, json, enabled=False)


def _drain(folder: Path, json: bool, enabled: bool) -> None:
    from pomona_federation.server.study_queue import StudyQueue
    from pomona_federation.status import server

    StudyQueue(folder).drain(enabled)
    state = server(folder)["drain"]
    sentences = {
        "": "rounds and studies begin again",
        "draining": "the current round is finished first; then nothing starts",
        "drained": "nothing is running, and nothing starts",
    }
    respond(json, {"drain": state}, sentences[state])


def _last_unused(unused: dict[str, Any] | None) -> str:
    return f"round {unused['round']}: {unused['reason']}" if unused else ""


def why(silo: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Say in which rounds a silo's uplink was not used, why, and what to do.

    Parameters
    ----------
    silo
        its name
    """
    from pomona_federation.server.registry_admin import uplinks

    history = uplinks(folder, silo)
    if json:
        emit(history)
        return
    used, rounds = history["used"], history["rounds"]
    echo(f"{silo}: uplink used in {used} of {rounds} finished rounds of all studies")
    if not history["unused"]:
        return
    print_table(of_records(list(_spans(history["unused"]))))
    for reason, remedy in {row["reason"]: row["remedy"] for row in history["unused"]}.items():
        echo(f"{reason}: {remedy}")


def _spans(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of consecutive rounds with one reason as one."""
    span_keys = [
        (row["study"], row.get("trial"), row["stage"], row["reason"], row["round"] - position)
        for position, row in enumerate(rows)
    ]
    for (study, trial, stage, reason, _), group in groupby(
        zip(span_keys, rows, strict=True), lambda pair: pair[0]
    ):
        span = [row for _, row in group]
        bounds, last = dict.fromkeys((span[0]["round"], span[-1]["round"])), span[-1]
        yield {
            "study": study if trial is None else f"{study}, trial {trial}",
            "rounds": "-".join(map(str, bounds)),
            "stage": stage,
            "reason": reason,
            "sentence": last["sentence"],
        }


def stop(*, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Stop the server cleanly; the round in flight is dropped, and `pomona server resume` continues
    the run.
    """
    stop_process(folder / "run", "server", json)


def stop_process(state: Path, role: str, json: bool) -> None:
    """Ask the process that holds a folder to stop, and report whether it did."""
    from pomona_federation.supervision.supervisor import ask_to_stop, holder

    if not holder(state):
        raise StorageError(f"no {role} runs in {state}; nothing to stop")
    stopped = ask_to_stop(state)
    if not stopped:
        raise StorageError(
            f"the {role} in {state} has not stopped; look at its logs, or stop it on its own "
            "machine"
        )
    respond(json, {"stopped": True}, "stopped")


def add(
    name: str, *, key: Path | None = None, folder: ServerKit = SERVER, json: Json = False
) -> None:
    """Add a silo: it takes a free place and joins at the next round.

    Parameters
    ----------
    name
        as in its kit, see `pomona deploy provision --add`
    key
        its public key
    """
    from pomona_federation.server.registry_admin import admit
    from pomona_federation.server.study_queue import StudyQueue

    declined = StudyQueue(folder).declined
    client = admit(folder, name, key)
    reopened = sorted(declined - StudyQueue(folder).declined)
    respond(
        json,
        {"silo": name, "place": client, "reopened": reopened},
        f"{name} has place {client} and joins in the next round in which it is connected",
        *(
            f"study {study}, which was declined, is open again: with {name} enough members could "
            f"accept; if it should not run, `pomona server study abort {study}`"
            for study in reopened
        ),
    )


def revoke(name: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Revoke a silo: its key can no longer connect, and its model is not sent from the next round
    on.

    Parameters
    ----------
    name
        the silo
    """
    from pomona_federation.server.registry_admin import LASTING, dismiss

    dismiss(folder, name)
    line = f"{name} is revoked from the next round on. What cannot be undone: {LASTING}"
    respond(json, {"silo": name, "revoked": True, "remains": LASTING}, line)


def readmit(
    name: str, *, study: str | None = None, folder: ServerKit = SERVER, json: Json = False
) -> None:
    """Take a silo again that was restored from a backup older than the study's last round.

    It continues from the newest round that it has, or starts as a newcomer does. Ask its
    administrator first that no other copy of it runs.

    Parameters
    ----------
    name
        the silo
    study
        name of a study; default the current one
    """
    from pomona_federation.server.study_queue import StudyQueue

    study_name, number = StudyQueue(folder).readmit(name, study)
    line = f"{name} is readmitted to study {study_name}, at the latest in round {number}"
    respond(json, {"silo": name, "study": study_name, "round": number}, line)


def page(
    name: str | None = None, *, folder: ServerKit = SERVER, revoke: Flag = False, json: Json = False
) -> None:
    """List who may read the status page; give a person access, or end it.

    Parameters
    ----------
    name
        a person; list all who may read it if unset
    revoke
        end the person's access
    """
    from pomona_federation.certificates import fingerprint
    from pomona_federation.monitoring import status_page

    federation = Federation.read(folder / "federation.toml")
    require_kit(folder, "server")
    if name is None:
        names = sorted(status_page.readers(folder).tokens)
        respond(json, names, *(names or ["no one may read the status page"]))
        return
    if revoke:
        status_page.revoke_reader(folder, name)
        respond(json, {"reader": name, "revoked": True}, f"access of {name} ended")
        return
    if not ServerFile.load(folder, federation).page:
        raise ConfigError(f"write page = true into {folder / NAME}, and start the server again")
    row = {
        "url": f"https://{federation.server}{PAGE}",
        "user": name,
        "password": status_page.add_reader(folder, name),
        "certificate_sha256": fingerprint(folder / "certs" / "server.crt"),
    }
    respond(json, row, *(f"{key.replace('_', ' ')}: {row[key]}" for key in row))


def notify(*, folder: ServerKit = SERVER, test: Flag = False, json: Json = False) -> None:
    """Show where notices go and how many wait, or send a test notice.

    Parameters
    ----------
    test
        send a notice to every receiver
    """
    from pomona_federation.server.notifier import pending, try_out

    federation = Federation.read(folder / "federation.toml")
    settings = ServerFile.load(folder, federation).notify
    if settings is None:
        raise ConfigError(f"{folder / NAME} has no section [notify]: no notice is sent")
    rows: list[dict[str, Any]]
    if test:
        outcomes = try_out(folder, federation.name, settings)
        rows = [{"receiver": name, "outcome": text} for name, text in outcomes.items()]
    else:
        counts = pending(folder)
        rows = [{"receiver": name, "waiting": counts[name]} for name in settings.channels]
    respond(json, rows, of_records(rows))
    if failed := [row["receiver"] for row in rows if row.get("outcome", "sent") != "sent"]:
        raise ConfigError(f"no notice reaches {', '.join(failed)}; correct [notify] in {NAME}")
