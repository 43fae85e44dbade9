"""Commands that this package adds to ``pomona``, for kits, servers, silos and studies."""

from cyclopts import App

SERVER = {
    "start": "Run the federation until it ends.",
    "resume": "Continue a run that was interrupted or failed.",
    "status": "Show the round, who is present, absent or rejected and why, bytes and time.",
    "stop": "Stop the server in order.",
    "add": "Add a silo; it joins at the next round.",
    "revoke": "Revoke a silo from the next round on.",
}
SILO = {
    "check": "Find out what is wrong before taking part, and say what would leave the silo.",
    "start": "Keep this silo connected until it is stopped.",
    "status": "Show the node's state, the last visit, certificate and disk.",
    "report": (
        "Show what the federation did for this silo: accuracy beside training alone, and "
        "who helped."
    ),
    "stop": "Stop taking part; the silo's state stays.",
}
STUDY = {
    "submit": "Take a study into the queue.",
    "list": "List the studies in their order, with the silos' decisions.",
    "begin": "Start a study with the silos that have accepted.",
    "result": "Print what a survey, an evaluation or a search has found.",
    "abort": "End a study, or take it out of the queue.",
    "resume": "Put a study that was aborted, or that failed, back into the queue.",
}
DECISIONS = {
    "studies": "List the studies that the server has offered, and what was decided on each.",
    "accept": "Accept a study: this silo does its tasks from then on.",
    "decline": "Decline a study: this silo does none of its tasks.",
}
CLI = "pomona_federation.cli"


def add(app: App) -> frozenset[str]:
    """Add the commands to ``pomona``; return the names of those whose files are readable only by
    their owner.
    """
    kits = [_deploy(), _server(), _silo()]
    for command in kits:
        app.command(command)
    return frozenset(name for command in kits for name in command.name)


def _deploy() -> App:
    deploy = App(
        name="deploy",
        help="A federation between organisations: its kits, and a rehearsal on this machine.",
    )
    deploy.command(
        f"{CLI}.deploy:provision", name="provision", help="Make keys and kits for server and silos."
    )
    deploy.command(
        f"{CLI}.deploy:renew", name="renew", help="Renew the server's certificate before it ends."
    )
    deploy.command(
        f"{CLI}.deploy:task",
        name="task",
        help="Write section task for silos with files like yours.",
    )
    deploy.command(
        f"{CLI}.rehearse:rehearse",
        name="rehearse",
        help="Run a federation on this machine, and compare.",
    )
    deploy.command(
        f"{CLI}.rehearse:simulate",
        name="simulate",
        help="Simulate a study on data that have to fit it.",
    )
    deploy.command(
        f"{CLI}.deploy:settings",
        name="settings",
        help="Explain the files of a federation, or one KEY.",
    )
    deploy.command(f"{CLI}.kits:certify_key", name="renew-key", help="Certify a silo's next key.")
    return deploy


def _server() -> App:
    server = App(name="server", help="The server of a federation between organisations.")
    for name, what in SERVER.items():
        server.command(f"{CLI}.server:{name}", name=name, help=what)
    _of_kits(server, "server")
    study = App(name="study", help="Studies of a federation, one after another.")
    for name, what in STUDY.items():
        names = ("begin", "start") if name == "begin" else name
        study.command(f"{CLI}.studies:{'list_' if name == 'list' else name}", name=names, help=what)
    server.command(study)
    server.command(
        f"{CLI}.kits:replace_key",
        name="renew-key",
        help="Let a silo's next key take its key's place.",
    )
    return server


def _silo() -> App:
    silo = App(name="silo", help="A silo of a federation, on its own machine.")
    for name, what in SILO.items():
        silo.command(f"{CLI}.silo:{name}", name=name, help=what)
    _of_kits(silo, "silo")
    for name, what in DECISIONS.items():
        silo.command(f"{CLI}.studies:{name}", name=name, help=what)
    silo.command(f"{CLI}.kits:next_key", name="renew-key", help="Make this silo's next key.")
    silo.command(f"{CLI}.kits:use_key", name="use-key", help="Take this silo's next key into use.")
    return silo


def _of_kits(side: App, name: str) -> None:
    """Add the commands that servers and silos have in common."""
    side.command(
        f"{CLI}.watching:logs_{name}",
        name="logs",
        help="Show the logs of all its processes, by time.",
    )
    side.command(
        f"{CLI}.kits:contents_{name}",
        name="contents",
        help="List the kit's files, and which are secret.",
    )
    side.command(
        f"{CLI}.kits:backup_{name}", name="backup", help="Write the kit's backup to a file."
    )
    side.command(f"{CLI}.kits:restore_{name}", name="restore", help="Make a kit of its backup.")
    side.command(
        f"{CLI}.watching:audit_{name}", name="audit", help="Show the audit log, or verify it."
    )
    side.command(
        f"{CLI}.watching:metrics_{name}",
        name="metrics",
        help="Serve metrics for Prometheus on loopback.",
    )
