"""The page of an audit, in words for a data-protection officer; and its numbers as JSON."""

import json
from pathlib import Path
from typing import Any

from pomona.audit import pictures
from pomona.audit.audit import Audit, Measured
from pomona.audit.findings import EVERYBODY, FEW_ALARMS, Findings, Membership
from pomona.audit.pictures import ATTACKS
from pomona.audit.roc import Estimate
from pomona.audit.views import Readable
from pomona.core.table import NOTHING, Table
from pomona.federation.noise_in_sums import against
from pomona.results.figures.plot import ReportFigure, drawing
from pomona.results.web.page_writer import render, write_page

PAGE, NUMBERS = "privacy-audit.html", "privacy-audit.json"
PARTIES = {"server": "The server", "peer": "Another client"}
SLIGHT = 0.6  # AUC below which an attack knows little


def write(found: Audit) -> Path:
    """Write page and numbers into the audit's folder; return the page's path."""
    numbers = [record(each) for each in found.measured]
    with drawing():
        texts = {NUMBERS: json.dumps(numbers, indent=2) + "\n", PAGE: _html(found)}
        return write_page(found.folder, texts)


def record(measured: Measured) -> dict[str, Any]:
    """Return the numbers of one budget for JSON."""
    rebuilt = {
        str(batch): [
            {
                "client": one.client,
                "closed_form": one.closed,
                "likeness": one.match.likeness.tolist(),
                "recognised": one.match.recognised.tolist(),
            }
            for one in made
        ]
        for batch, made in measured.pictures.items()
    }
    return {**measured.findings.record(), "rebuilt": rebuilt}


def verdict(found: Findings, party: str) -> str:
    """Say in one sentence what a party can tell of who was trained on."""
    name, best = PARTIES[party], found.main(party)
    if best is None:
        return f"{name} receives nothing that these attacks can read."
    value, low, high = (f"{100 * part:.0f}" for part in best.auc)
    cases = (
        f"of two records, one of each kind, it names the right one in {value} of 100 cases "
        f"({low} to {high}; guessing: 50)."
    )
    if best.auc.low <= 0.5:
        return f"{name} was not shown to tell training records from others: {cases}"
    much = "a little" if best.auc.value < SLIGHT else "clearly"
    return f"{name} can tell training records from others {much} better than by guessing: {cases}"


def party_table(audit: Audit, found: Findings, party: str) -> Table:
    """Return a party's table: what each attack tells of each client."""
    header = ["client", "attack", "AUC", "95 % interval"]
    header += [f"found at {100 * share:g} % false alarms" for share in FEW_ALARMS]
    made = found.of(party)
    rows = [_row(audit, each) for each in made]
    together = [k for k, each in enumerate(made) if each.client == EVERYBODY]
    return Table(
        party,
        f"{PARTIES[party]} receives {_received(audit, party)}",
        [
            verdict(found, party),
            "AUC: how often the attack ranks a training record above another record of the same "
            "client; 0.5 is guessing, 1 is certainty. A dash: too few records to show so low a "
            "share of false alarms.",
        ],
        header,
        rows,
        words=(0, 1),
        marked=frozenset((k, column) for k in together for column in range(1, len(header))),
    )


def _received(audit: Audit, party: str) -> str:
    if party == "server":
        sums = audit.scenario.config.secure_aggregation
        return "the mean of all clients' models" if sums else "each client's messages"
    single = Readable.of(audit.scenario).single
    return "single clients' models" if single else "what the server makes of all messages"


def _row(audit: Audit, each: Membership) -> list[str]:
    who = "all clients" if each.client == EVERYBODY else audit.scenario.names[each.client]
    interval = f"{each.auc.low:.3f} to {each.auc.high:.3f}"
    hits = [NOTHING if share is None else f"{100 * share:.1f} %" for share in each.hits]
    return [who, ATTACKS[each.attack], f"{each.auc.value:.3f}", interval, *hits]


def _share(of: Estimate) -> str:
    """Format a share with its interval, in percent."""
    value, low, high = (f"{100 * part:.1f}" for part in of)
    return f"{value} % ({low} to {high})"


def sites_table(found: Findings) -> Table | None:
    """Return the table of guesses at which client holds a record."""
    if not found.sites:
        return None
    rows = [
        [
            PARTIES[s.party],
            "trained on" if s.trained else "not trained on",
            _share(s.right),
            f"{100 * s.chance:.1f} %",
            str(s.records),
        ]
        for s in found.sites
    ]
    note = (
        "A record is given to the client whose model fits it best. Where records not trained on "
        "are guessed as well, it is the clients' populations that differ, and not single records "
        "that leak."
    )
    header = ["party", "records", "right", "by naming the largest client", "number"]
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
                        f"{each.proven[client]:.2f}",
                        f"{ledger:.2f}",
                    ]
                )
    if not rows:
        return None
    note = (
        f"At most: the ledger, a bound {against(audit.scenario.config) or 'against any attack'}. "
        "At least: what the attacks of this page prove; of all clients together, at 95 % "
        "confidence. The truth lies between."
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
        title=f"What a run of {card.presentation.title} reveals",
        first="part-0",
        links=[*links, ("method", "How it was measured")],
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
        "unseen": [PARTIES[party] for party in found.unseen],
        "pictures": [(one, one.png()) for one in shown if one],
    }
