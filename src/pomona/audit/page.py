"""The page of an audit, in words for a data-protection officer; and its numbers as JSON."""

import json
from pathlib import Path
from typing import Any

from pomona.audit import pictures
from pomona.audit.audit import Audit, Measured
from pomona.audit.findings import EVERYBODY, FEW_ALARMS, Findings, Membership
from pomona.audit.roc import Estimate
from pomona.core.table import NOTHING, Table
from pomona.results.figures.plot import ReportFigure, drawing
from pomona.results.web.page_writer import render, write_page

PAGE, NUMBERS = "privacy-audit.html", "privacy-audit.json"
PARTIES = {
    "server": ("The server", "receives every client's messages"),
    "peer": ("Another client", "receives what the server hands out"),
}
ATTACKS = {
    "threshold": "low loss",
    "lira": "likelihood ratio",
    "differences": "difference of messages",
}
SLIGHT = 0.6  # AUC below which an attack knows little


def write(found: Audit) -> Path:
    """Write page and numbers into the audit's folder; return the page's path."""
    numbers = [m.findings.record() for m in found.measured]
    with drawing():
        texts = {NUMBERS: json.dumps(numbers, indent=2) + "\n", PAGE: _html(found)}
        return write_page(found.folder, texts)


def verdict(found: Findings, party: str) -> str:
    """Say in one sentence what a party can tell of who was trained on."""
    name, best = PARTIES[party][0], found.strongest(party)
    if best is None:
        return f"{name} receives no model: no attack of this audit applies."
    share = f"{best.auc.value:.0%}"
    if best.auc.low <= 0.5:
        return f"{name} could not tell training records from others ({share}; guessing has 50 %)."
    much = "a little better than by guessing" if best.auc.value < SLIGHT else "clearly better"
    return (
        f"{name} can tell a training record from another {much}: right in {share} of such pairs "
        f"({_range(best.auc)})."
    )


def party_table(audit: Audit, found: Findings, party: str) -> Table:
    """Return a party's table: what each attack tells of each client."""
    header = ["client", "attack", "AUC", "95 % interval"]
    header += [f"found at {share:.1%} false alarms" for share in FEW_ALARMS]
    rows = [_row(audit, each) for each in found.of(party)]
    return Table(
        party,
        f"{PARTIES[party][0]}: {PARTIES[party][1]}",
        [
            verdict(found, party),
            "AUC: how often the attack ranks a training record above another record of the same "
            "client; 0.5 is guessing, 1 is certainty. A dash: too few records to show so low a "
            "share of false alarms.",
        ],
        header,
        rows,
        words=(0, 1),
    )


def _row(audit: Audit, each: Membership) -> list[str]:
    who = "all clients" if each.client == EVERYBODY else audit.scenario.names[each.client]
    hits = [
        NOTHING if h is None else f"{h.value:.1%} ({h.low:.1%} to {h.high:.1%})" for h in each.hits
    ]
    return [who, ATTACKS[each.attack], f"{each.auc.value:.3f}", _range(each.auc), *hits]


def _range(of: Estimate) -> str:
    return f"{of.low:.3f} to {of.high:.3f}"


def sites_table(found: Findings) -> Table | None:
    """Return the table of guesses at which client holds a record."""
    if not found.sites:
        return None
    rows = [
        [
            PARTIES[s.party][0],
            "trained on" if s.trained else "not trained on",
            f"{s.right.value:.1%}",
            f"{s.right.low:.1%} to {s.right.high:.1%}",
            f"{s.chance:.1%}",
            str(s.records),
        ]
        for s in found.sites
    ]
    note = (
        "A record is given to the client whose model fits it best. Where records not trained on "
        "are guessed as well, it is the clients' populations that differ, and not single records "
        "that leak."
    )
    header = ["party", "records", "right", "95 % interval", "largest client", "number"]
    return Table("sites", "Which client holds a record?", [note], header, rows, words=(0, 1))


def epsilon_table(audit: Audit) -> Table | None:
    """Return the table of epsilon from both sides; None without privacy."""
    rows = []
    for each in (m.findings for m in audit.measured):
        for client, ledger in enumerate(each.ledger):
            if ledger is not None:
                asked = "the run's own" if each.budget is None else f"{each.budget:g}"
                rows.append(
                    [
                        asked,
                        audit.scenario.names[client],
                        f"{each.proven(client):.2f}",
                        f"{ledger:.2f}",
                    ]
                )
    if not rows:
        return None
    note = (
        "At most: the ledger, valid against any attack. At least: what the attacks of this page "
        "prove at 95 % confidence. The truth lies between."
    )
    header = ["epsilon asked for", "client", "at least", "at most"]
    return Table("epsilon", "Epsilon from both sides", [note], header, rows, words=(0, 1))


def _html(audit: Audit) -> str:
    parts = [_section(audit, measured) for measured in audit.measured]
    own = audit.measured[0].findings
    card = audit.scenario.config.method.method().card
    epsilons, both = epsilon_table(audit), pictures.both_sides([m.findings for m in audit.measured])
    config = audit.scenario.config
    links = [(f"part-{k}", part["title"]) for k, part in enumerate(parts)]
    links += [("epsilon", "Epsilon")] if epsilons else []
    return render(
        "audit.html.jinja",
        "pomona.audit",
        title=f"What {card.presentation.title} reveals on {config.data.name}",
        first="part-0",
        links=[
            *links,
            *([("epsilon", "Epsilon")] if epsilons else []),
            ("method", "How it was measured"),
        ],
        opening=[verdict(own, party) for party in PARTIES],
        parts=parts,
        epsilons=epsilons,
        both=(both, both.png()) if both else None,
        runs=own.runs,
        unfit=audit.unfit,
        tells=[*card.exchange.tells.values()],
        down=card.exchange.down,
        up=card.exchange.up,
        private=bool(config.privacy),
    )


def _section(audit: Audit, measured: Measured) -> dict[str, Any]:
    """Return what the page says of one budget."""
    found = measured.findings
    tables = [party_table(audit, found, p) for p in PARTIES if found.of(p)]
    site = sites_table(found)
    shown: list[ReportFigure | None] = [pictures.curves(found)]
    for batch, made in measured.pictures.items():
        if made:
            what = "one record" if batch == 1 else f"{batch} records"
            title = f"What the first message of a client with {what} shows"
            shown.append(pictures.records(audit.scenario, made, f"batch-{batch}", title))
    return {
        "title": "The run" if found.budget is None else f"With epsilon {found.budget:g}",
        "tables": [*tables, *([site] if site else [])],
        "unseen": [PARTIES[party][0] for party in found.unseen],
        "pictures": [(one, one.png()) for one in shown if one],
    }
