"""``pomona server study``, ``pomona silo studies``, ``accept`` and ``decline``: studies on an
existing federation.
"""

import getpass
import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Flag, Json, echo, emit, print_table, respond
from pomona.core.errors import ConfigError, PomonaError
from pomona.core.registry import importable
from pomona.core.table import of_records
from pomona_federation.cli.kits import CURRENT_FOLDER, SERVER, ServerKit, SiloKit

DecidedBy = Annotated[str, Parameter(help="who decides; default the account's name")]


def submit(file: Path, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Add a study to the queue; it runs after the studies before it, once the silos have accepted
    it.

    Parameters
    ----------
    file
        its STUDY.toml
    """
    from pomona_federation.agreement import in_fours
    from pomona_federation.server.study_queue import StudyQueue

    importable(folder)
    queue = StudyQueue(folder)
    submission = queue.submit(file)
    digits = in_fours(submission.agreement)
    respond(
        json,
        {"study": submission.study.name, "agreement": submission.agreement, "digits": digits},
        f"study {submission.study.name} is number {submission.number}; its hash is",
        f"  {submission.agreement}",
        "by telephone, every silo reads out what `pomona silo check --study` prints after "
        "“compare”",
        f"  {digits}",
        "every silo's administrator sees it with `pomona silo studies`, and accepts or declines "
        "it by this hash",
    )


def list_(*, folder: ServerKit = SERVER, json: Json = False) -> None:
    """List the studies in order, with the silos' decisions."""
    from pomona_federation.server.study_requests import overview

    rows = overview(folder)
    respond(json, rows, of_records(rows) if rows else "no study")


def abort(name: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """End a study, or remove it from the queue; `pomona server study resume` puts it back.

    Parameters
    ----------
    name
        the study's
    """
    from pomona_federation.server.study_queue import StudyQueue

    StudyQueue(folder).abort(name)
    line = f"study {name} has ended; its results so far are kept"
    respond(json, {"study": name, "aborted": True}, line)


def begin(name: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Start a study with the silos that have accepted, if they are enough, without waiting for
    others.

    Parameters
    ----------
    name
        the study's
    """
    from pomona_federation.server.study_queue import StudyQueue

    undecided = StudyQueue(folder).start(name)
    absent = f", without {', '.join(undecided)}" if undecided else ""
    line = f"study {name} starts when its turn comes{absent}"
    respond(json, {"study": name, "begun": True, "undecided": undecided}, line)


def resume(name: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Put an aborted or failed study back into the queue; it continues after its last committed
    round.

    Parameters
    ----------
    name
        the study's
    """
    from pomona_federation.server.study_queue import StudyQueue

    StudyQueue(folder).resume(name)
    line = f"study {name} continues when its turn comes"
    respond(json, {"study": name, "resumed": True}, line)


def result(name: str, *, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Print the result of a survey, an evaluation or a search; the study's folder also has it as a
    page and as CSV.

    Parameters
    ----------
    name
        the study's
    """
    from pomona_federation.server.study_requests import result_text

    content = result_text(folder, name, "json" if json else "md")
    print(content, end="")


def studies(*, folder: SiloKit = CURRENT_FOLDER, ask: Flag = False, json: Json = False) -> None:
    """List the studies offered by the server, and the decision on each.

    Parameters
    ----------
    ask
        ask the server for new studies now
    """
    from pomona_federation.silo.privacy_budget import overview
    from pomona_federation.silo.study_decisions import StudyDecisions

    if ask:
        from pomona_federation.silo.study_proposals import consider, over_the_network

        consider(folder, over_the_network(folder), echo)
    rows = [_study_row(k) for k in StudyDecisions(folder).all]
    if json:
        emit(rows)
        return
    if rows:
        print_table(of_records(rows))
    else:
        echo("no study was offered yet, except one that may have come with the kit")
    if waiting := [row["hash"][:9] for row in rows if row["decision"] == "pending"]:
        echo(
            f"pomona silo check --study {waiting[0]} shows what it would do, what to know first,",
            "and what would leave",
            f"pomona silo accept {waiting[0]}   or   decline",
        )
    if costs := overview(folder):
        _show_costs(costs)


def _show_costs(costs: list[dict[str, Any]]) -> None:
    scopes = {cost["study"]: against for cost in costs if (against := cost.pop("against"))}
    notes = [f"study {name}: its epsilon holds {against}" for name, against in scopes.items()]
    title = "Privacy: epsilon that is reserved on this silo's data, and spent"
    print_table(of_records(costs, title, notes))


def _study_row(study: Any) -> dict[str, Any]:
    digits = study.agreement[:16]
    return {
        "study": study.study.name,
        "hash": digits,
        "kind": study.study.kind,
        "decision": study.status,
        "by": study.by,
        "when": study.when,
        "why": study.why,
    }


def accept(
    study: str, *, by: DecidedBy = "", folder: SiloKit = CURRENT_FOLDER, json: Json = False
) -> None:
    """Accept a study: this silo does its tasks from then on. What `silo check --study` refuses is
    refused.

    Parameters
    ----------
    study
        the first digits of its hash, or its name
    """
    _decide(study, True, by, folder, json)


def decline(
    study: str, *, by: DecidedBy = "", folder: SiloKit = CURRENT_FOLDER, json: Json = False
) -> None:
    """Decline a study, even an accepted one: this silo does none of its tasks from then on.

    Parameters
    ----------
    study
        the first digits of its hash, or its name
    """
    _decide(study, False, by, folder, json)


def _decide(study: str, accepted: bool, decider: str, folder: Path, json: bool) -> None:
    from pomona_federation.silo.study_decisions import StudyDecisions

    studies = StudyDecisions(folder)
    if unknown := not studies.matching(study):
        _fetch_studies(folder)
    offered = studies.lookup(study)
    if unknown and accepted and study == offered.study.name:
        raise ConfigError(
            f"study {study} has just arrived from the server: see what it would do with `pomona "
            f"silo check --study {offered.agreement[:9]}`, then accept it by this hash"
        )
    if accepted:
        from pomona_federation.silo.preflight import require_acceptable

        require_acceptable(folder, offered)
    decided = studies.decide(offered, accepted, decider or _account())
    news = _send_decisions(folder)
    line = f"study {decided.study.name} ({decided.agreement[:16]}) is {decided.status}"
    respond(json, _study_row(decided), f"{line} by {decided.by}; {news}")


def _fetch_studies(folder: Path) -> None:
    """Ask the server for new studies; if it cannot be reached, those that are known remain."""
    from pomona_federation.silo.study_proposals import consider, over_the_network

    try:
        consider(folder, over_the_network(folder), echo)
    except (PomonaError, OSError, ValueError) as fault:
        echo(f"the server cannot be asked for new studies now: {fault}")


def _account() -> str:
    """The account's name, or its number: in the kit's container it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"account {os.getuid()}"


def _send_decisions(folder: Path) -> str:
    """Send decisions to the server at once; if it cannot be reached, a running silo sends them
    later.
    """
    from pomona_federation.silo.study_proposals import over_the_network, visit

    try:
        visit(folder, over_the_network(folder))
    except (PomonaError, OSError, ValueError):
        return "the server cannot be reached now; the running silo will send the decision"
    return "the server knows"
