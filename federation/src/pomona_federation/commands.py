"""Commands that this package adds to ``pomona``, for kits, servers, silos and studies."""

from cyclopts import App

Commands = dict[str, tuple[str, str]]  # by name: its function, and its help
GROUPS = {
    "deploy": "A federation between organisations: its kits, and a rehearsal on this machine.",
    "server": "The server of a federation between organisations.",
    "silo": "A silo of a federation, on its own machine.",
    "study": "Studies of a federation, one after another.",
}
DEPLOY: Commands = {
    "provision": ("deploy:provision", "Make keys and kits for server and silos."),
    "renew": ("deploy:renew", "Renew the server's certificate before it ends."),
    "task": ("deploy:task", "Write the section [task] for silos with files like yours."),
    "rehearse": ("rehearse:rehearse", "Run a federation on this machine, and compare."),
    "simulate": ("rehearse:simulate", "Simulate a study on data that fit its task."),
    "settings": ("file_settings:settings", "Explain the files of a federation, or one KEY."),
    "renew-key": ("kits:certify_key", "Certify a silo's next key."),
}
SERVER: Commands = {
    "start": ("server:start", "Run the federation until it ends."),
    "resume": ("server:resume", "Continue a run that was interrupted or failed."),
    "status": (
        "server:status",
        "Show the round, who is present, absent or rejected and why, bytes and time.",
    ),
    "drain": ("server:drain", "Finish the current round, then start no further round or study."),
    "undrain": ("server:undrain", "Let rounds and studies begin again."),
    "why": ("server:why", "List the rounds in which a silo's uplink was not used, and why."),
    "stop": ("server:stop", "Stop the server cleanly."),
    "add": ("server:add", "Add a silo; it joins at the next round."),
    "revoke": ("server:revoke", "Revoke a silo from the next round on."),
    "readmit": ("server:readmit", "Readmit a silo that was restored from an older backup."),
    "restore": ("kits:restore_server", "Restore a kit from its backup."),
    "renew-key": ("kits:replace_key", "Replace a silo's key with its next one."),
    "page": ("server:page", "List who may read the status page; give a person access, or end it."),
    "notify": ("server:notify", "Show where notices go, and send a test notice."),
}
SILO: Commands = {
    "check": ("silo:check", "Check this silo before it takes part, and list what would leave it."),
    "start": ("silo:start", "Keep this silo connected until it is stopped."),
    "status": ("silo:status", "Show the node's state, the last visit, certificate and disk."),
    "report": (
        "silo:report",
        "Show what the federation did for this silo: accuracy, that of local training, and who "
        "helped.",
    ),
    "export": ("silo:export", "Export this silo's own model for other programs."),
    "stop": ("silo:stop", "Stop taking part; the silo's state is kept."),
    "studies": (
        "studies:studies",
        "List the studies that the server has offered, and what was decided on each.",
    ),
    "accept": ("studies:accept", "Accept a study: this silo does its tasks from then on."),
    "decline": ("studies:decline", "Decline a study: this silo does none of its tasks."),
    "restore": ("kits:restore_silo", "Restore a kit from its backup."),
    "renew-key": ("kits:next_key", "Make this silo's next key."),
    "use-key": ("kits:use_key", "Start using this silo's next key."),
}
STUDY: Commands = {
    "submit": ("studies:submit", "Put a study into the queue."),
    "list": ("studies:list_", "List the studies in their order, with the silos' decisions."),
    "begin start": ("studies:begin", "Start a study with the silos that have accepted."),
    "result": ("studies:result", "Print the result of a survey, an evaluation or a search."),
    "abort": ("studies:abort", "End a study, or take it out of the queue."),
    "resume": ("studies:resume", "Put an aborted or failed study back into the queue."),
}
# of a server and of a silo
KIT: Commands = {
    "logs": ("watching:logs", "Show the logs of all its processes, by time."),
    "contents": ("kits:contents", "List the kit's files, and which are secret."),
    "backup": ("kits:backup", "Write the kit's backup to a file."),
    "audit": ("watching:audit", "Show the audit log, or verify it."),
    "metrics": ("watching:metrics", "Serve metrics for Prometheus on loopback."),
}


def add(app: App) -> frozenset[str]:
    """Add the commands to ``pomona``; return the names of those whose files are readable only by
    their owner.
    """
    groups = {name: App(name=name, help=help_text) for name, help_text in GROUPS.items()}
    tables = {"deploy": DEPLOY, "server": SERVER | KIT, "silo": SILO | KIT, "study": STUDY}
    for group, commands in tables.items():
        for names, (function, help_text) in commands.items():
            target = f"pomona_federation.cli.{function}"
            groups[group].command(target, name=names.split(), help=help_text)
    groups["server"].command(groups.pop("study"))
    for command in groups.values():
        app.command(command)
    return frozenset(groups)
