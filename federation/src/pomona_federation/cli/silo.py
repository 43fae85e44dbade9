"""``pomona silo``: a silo of a federation, on its own machine."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, activity, echo, echo_stderr, emit, respond, size
from pomona.cli.predict import ExportFormat, export_model
from pomona.core.errors import ConfigError
from pomona.core.files import safe_path
from pomona_federation.cli.kits import CURRENT_FOLDER, SiloKit
from pomona_federation.cli.server import stop_process

Study = Annotated[
    str | None,
    Parameter(help="a study by its name or the first digits of its hash; default the kit's own"),
]
NO_BOUND = "no noise, so no bound"


def start(*, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Keep this silo connected until it is stopped."""
    from pomona_federation.silo.node_supervisor import run_node

    try:
        run_node(folder, (lambda text: emit({"said": text})) if json else echo_stderr)
    except KeyboardInterrupt:
        print("error[INTERRUPTED]: stopped; `pomona silo start` joins again", file=sys.stderr)
        sys.exit(130)


def status(*, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Show the node's state, the last visit, certificate and disk."""
    from pomona_federation.installation.contents import require_kit
    from pomona_federation.status import silo

    require_kit(folder, "silo")
    s = silo(folder)
    torn, visits = s["torn_visits"], f"last visit {s['last_visit'] or 'none yet'}"
    respond(
        json,
        s,
        f"{s['federation']} at {s['server']}",
        (
            f"node      {s['state']}{_in_brackets(s['reason'])}, since {s['since'] or '-'}, "
            f"{s['restarts']} restarts"
        ),
        *(f"study     {w['study']} ({w['hash']}): {_study_progress(w)}" for w in s["studies"]),
        f"round     {s['round'] or 0} of {s['rounds']}, {visits}"
        if s["own_study"]
        else "round     the kit came without a study",
        *_if(s["fault"], f"fault     of the kit's own study: {s['fault']}"),
        f"traffic   {_traffic([s, *s['studies']])}",
        f"disk      {s['free_gb']} GB free",
        f"version   {s['version']}; the server's: {s['server_version'] or 'not known yet'}",
        *_if(
            torn,
            f"visits    {torn} lines of state/rounds.jsonl are cut short or damaged, and skipped",
        ),
        *_if(s["authority"], f"authority valid until {s['authority']}"),
        *map(cost_line, s["privacy"]),
        *(f"warning: {text}" for text in (s["warning"], s["version_warning"]) if text),
    )


def _if(condition: object, line: str) -> list[str]:
    return [line] if condition else []


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def cost_line(study: dict[str, Any]) -> str:
    """What a study has cost of the silo's privacy, for a row of ``overview``."""
    bound = study["epsilon_at_most"]
    cost = (
        f"epsilon {study['spent']:.3g} spent of {bound:.3g}, delta {study['delta']:g}"
        f"{study['against'] and ', '}{study['against']}"
        if bound is not None
        else NO_BOUND
    )
    return f"privacy   study {study['study']}: {cost}"


def _study_progress(study: dict[str, Any]) -> str:
    """Progress of a study at this silo."""
    last = f", last round {study['round']}, {_traffic([study])}" if study["round"] else ""
    waits = f"; {study['why']}" if study["decision"] == "pending" and study["why"] else ""
    return f"{study['decision']}{last}{waits}" + (
        f"; it fails here: {study['fault']}" if study["fault"] else ""
    )


def _traffic(studies: list[dict[str, Any]]) -> str:
    return (
        f"{size(sum(p['bytes_down'] for p in studies))} down, "
        f"{size(sum(p['bytes_up'] for p in studies))} up"
    )


def stop(*, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Stop taking part; the silo keeps its state, and `pomona silo start` continues from it."""
    stop_process(folder / "state", "silo", json)


def check(*, study: Study = None, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Find problems before taking part, and show what would leave the silo."""
    with activity("checking this silo"):
        from pomona_federation.silo.outgoing_filter import texts  # late: they import PyTorch
        from pomona_federation.silo.preflight import run

        lines, leaves, code = run(folder, study)
    if json:
        emit({"checks": [vars(line) for line in lines], "leaves": leaves, "code": code})
    else:
        for line in lines:
            echo(f"{line.result:<8} {line.check:<12} {line.text}")
        if leaves:
            print("\nWhat would leave this silo")
            for text in texts(leaves):
                echo(f"  {text}")
    sys.exit(code)


def report(*, study: Study = None, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Show this silo's results: its accuracy, that of local training, and which silos helped."""
    from pomona.cli.progress import progress_display
    from pomona_federation.silo.silo_report import report as create_report

    with progress_display(stays=False) as display:
        result, page = create_report(folder, display, study)
    respond(json, vars(result), *result.markdown().splitlines(), "", f"written  {page}")


def export(
    *,
    to: ExportFormat,
    study: Study = None,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
    folder: SiloKit = CURRENT_FOLDER,
    json: Json = False,
) -> None:
    """Export this silo's own model for other programs, as `pomona export` does, with its card.

    Own code that the model names is run if silo.toml lists code.

    Parameters
    ----------
    out_
        the file; default state/.../exports/personal.TO
    """
    from pomona.core.registry import importable
    from pomona_federation.silo.silo_in_study import Silo

    silo = Silo.in_study(folder, study)
    models = silo.state / "models"
    if not (model := models / "personal.safetensors").is_file():
        raise ConfigError(
            f"{model} does not exist yet; the first round of the study writes it (--study)"
        )
    importable(folder)
    path = out_ or safe_path(models, "exports", f"personal.{to}")
    export_model(model, path, to, bool(silo.file.code), json)
