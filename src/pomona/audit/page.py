"""The page of an audit, in words for a data-protection officer; and its numbers as JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pomona.audit import pictures
from pomona.audit.audit import Audit, Measured
from pomona.audit.findings import ALL_CLIENTS, FEW_ALARMS, Findings, Membership
from pomona.audit.pictures import ATTACKS
from pomona.audit.roc import Estimate
from pomona.audit.views import Readable
from pomona.core.table import PLACEHOLDER, Table
from pomona.federation.noise_in_sums import against
from pomona.results.figures.plot import ReportFigure, drawing
from pomona.results.web.page_writer import render, write_page

PAGE, NUMBERS = "privacy-audit.html", "privacy-audit.json"
PARTIES = {"server": "The server", "peer": "Another client"}
SLIGHT = 0.6  # AUC below which an attack knows little


def write(audit: Audit) -> Path:
    """Write page and numbers into the audit's folder; return the page's path."""
    numbers = [record(measured) for measured in audit.measured]
    with drawing():
        texts = {NUMBERS: json.dumps(numbers, indent=2) + "\n", PAGE: _html(audit)}
        return write_page(audit.folder, texts)


def record(measured: Measured) -> dict[str, Any]:
    """Return the numbers of one budget for JSON."""
    rebuilt = {
        str(batch): [
            {
                "client": reconstruction.client,
                "closed_form": reconstruction.closed,
                "likeness": reconstruction.match.likeness.tolist(),
                "recognised": reconstruction.match.recognised.tolist(),
            }
            for reconstruction in reconstructions
        ]
        for batch, reconstructions in measured.pictures.items()
    }
    return {**measured.findings.record(), "rebuilt": rebuilt}


def verdict(findings: Findings, party: str) -> str:
    """Return one sentence on how well a party recognises training records."""
    name, best = PARTIES[party], findings.main(party)
    if best is None:
        return f"{name} receives nothing that these attacks can read."
    value, low, high = (f"{100 * share:.0f}" for share in best.auc)
    cases = (
        f"of two records, one of each kind, it names the right one in {value} of 100 cases "
        f"({low} to {high}; guessing: 50)."
    )
    if best.auc.low <= 0.5:
        return f"{name} was not shown to tell training records from others: {cases}"
    degree = "a little" if best.auc.value < SLIGHT else "clearly"
    return f"{name} can tell training records from others {degree} better than by guessing: {cases}"


def party_table(audit: Audit, findings: Findings, party: str) -> Table:
    """Return a party's table: each attack's figures for each client."""
    header = ["client", "attack", "AUC", "95 % interval"]
    header += [f"found at {100 * share:g} % false alarms" for share in FEW_ALARMS]
    attacks = findings.by_party(party)
    rows = [_row(audit, attack) for attack in attacks]
    together = [k for k, attack in enumerate(attacks) if attack.client == ALL_CLIENTS]
    return Table(
        party,
        f"{PARTIES[party]} receives {_received(audit, party)}",
        [
            verdict(findings, party),
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
    single = Readable.build(audit.scenario).single
    return "single clients' models" if single else "what the server makes of all messages"


def _row(audit: Audit, attack: Membership) -> list[str]:
    client = "all clients" if attack.client == ALL_CLIENTS else audit.scenario.names[attack.client]
    interval = f"{attack.auc.low:.3f} to {attack.auc.high:.3f}"
    hits = [PLACEHOLDER if share is None else f"{100 * share:.1f} %" for share in attack.hits]
    return [client, ATTACKS[attack.attack], f"{attack.auc.value:.3f}", interval, *hits]


def _share(estimate: Estimate) -> str:
    """Format a share with its interval, in percent."""
    value, low, high = (f"{100 * share:.1f}" for share in estimate)
    return f"{value} % ({low} to {high})"


def sites_table(findings: Findings) -> Table | None:
    """Return the table of guesses at which client holds a record."""
    if not findings.sites:
        return None
    rows = [
        [
            PARTIES[s.party],
            "trained on" if s.trained else "not trained on",
            _share(s.right),
            f"{100 * s.chance:.1f} %",
            f"{s.records:,}",
        ]
        for s in findings.sites
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
    for findings in (m.findings for m in audit.measured):
        for client, ledger in enumerate(findings.ledger):
            if ledger is not None:
                budget = "the run's own" if findings.budget is None else f"{findings.budget:g}"
                rows.append(
                    [
                        budget,
                        audit.scenario.names[client],
                        f"{findings.proven[client]:.2f}",
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
    sections = [_section(audit, measured, k) for k, measured in enumerate(audit.measured)]
    findings = audit.measured[0].findings
    card = audit.scenario.config.method.method().card
    epsilons = epsilon_table(audit)
    figure = pictures.both_sides([m.findings for m in audit.measured])
    config = audit.scenario.config
    links = [(f"part-{k}", section["title"]) for k, section in enumerate(sections)]
    links += [("epsilon", "Epsilon")] if epsilons else []
    return render(
        "audit.html.jinja",
        "pomona.audit",
        title=f"What a run of {card.presentation.title} reveals",
        first="part-0",
        links=[*links, ("method", "How it was measured")],
        opening=[verdict(findings, party) for party in PARTIES],
        parts=sections,
        epsilons=epsilons,
        both=figure,
        runs=findings.runs,
        unfit=audit.unfit,
        tells=[*card.exchange.reveals.values()],
        down=card.exchange.down,
        up=card.exchange.up,
        private=bool(config.privacy),
    )


def _section(audit: Audit, measured: Measured, k: int) -> dict[str, Any]:
    """Return the page's section on budget number k."""
    findings = measured.findings
    tables = [party_table(audit, findings, p) for p in PARTIES if findings.by_party(p)]
    site = sites_table(findings)
    figures: list[ReportFigure | None] = [pictures.curves(findings)]
    for batch, reconstructions in measured.pictures.items():
        if reconstructions:
            records = "one record" if batch == 1 else f"{batch} records"
            title = f"What the first message of a client with {records} shows"
            figures.append(
                pictures.records(audit.scenario, reconstructions, f"batch-{batch}", title)
            )
    return {
        "title": "The run" if findings.budget is None else f"With epsilon {findings.budget:g}",
        "tables": [*tables, *([site] if site else [])],
        "unseen": [PARTIES[party] for party in findings.unseen],
        "pictures": [replace(f, name=f"{f.name}-{k}") for f in figures if f],
    }
