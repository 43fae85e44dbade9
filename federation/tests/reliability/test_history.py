"""Each rule of the history checker fails on a history that breaks it, and on no other."""

import pytest
from history import History, SiloHistory, violations

SILOS = ("a", "b", "c")


def line(event, **fields):
    return {"event": event, **fields}


def round_of(number, present=SILOS, summed=False):
    """The server's lines of one round."""
    absent = [name for name in SILOS if name not in present]
    return [
        *(line("sent", silo=s, round=number, task=f"t{number}") for s in SILOS),
        *(line("received", silo=s, round=number, uplink=f"{s}{number}") for s in present),
        *([line("sum", round=number, silos=list(present))] if summed else []),
        *(line("unused", silo=s, round=number, reason="not-connected") for s in absent),
        *(line("admitted", silo=s, round=number) for s in present),
        line("round", round=number, present=list(present), absent=absent),
    ]


def silo(name):
    """A silo that has taken part in three rounds of a study in private sums."""
    fields = {"study": "s"}
    return SiloHistory(
        [
            line("accepted", **fields),
            *(
                entry
                for n in (1, 2, 3)
                for entry in (
                    line("answered", **fields, round=n, task=f"t{n}", bytes=0),
                    line("sum", **fields, round=n, silos=list(SILOS)),
                    line("answered", **fields, round=n, task=f"s{n}", bytes=9),
                )
            ),
        ],
        {"s": [{"round": n, "trained": True} for n in (1, 2, 3)]},
        {"s": [{"round": n, "purpose": "training", "step": 0} for n in (1, 2, 3)]},
    )


def history(server=None, change=lambda silo: silo, broken=()):
    """Three rounds without a fault, but for changed lines."""
    start_line = line("start", study="s", round=0)
    rounds = [entry for n in (1, 2, 3) for entry in round_of(n, summed=True)]
    silos = {name: silo(name) for name in SILOS}
    silos["a"] = change(silos["a"])
    lines = [start_line, *rounds] if server is None else server([start_line, *rounds])
    return History(lines, silos, {"s": 3}, frozenset({"s"}), broken)


def removed(event, number, name=None):
    """The lines without some."""
    return lambda lines: [
        entry
        for entry in lines
        if (entry["event"], entry.get("round")) != (event, number)
        or (name and entry.get("silo") != name)
    ]


def inserted(event, number, *entries):
    """The lines with more after the first of an event in a round."""

    def changed(lines):
        index = next(
            k for k, e in enumerate(lines) if (e["event"], e.get("round")) == (event, number)
        )
        return [*lines[: index + 1], *entries, *lines[index + 1 :]]

    return changed


def audited(changed):
    return lambda silo: SiloHistory(changed(list(silo.audit)), silo.visits, silo.ledgers)


def visited(*visits):
    return lambda silo: SiloHistory(silo.audit, {"s": [*silo.visits["s"], *visits]}, silo.ledgers)


def entered(changed):
    return lambda silo: SiloHistory(silo.audit, silo.visits, {"s": changed(silo.ledgers["s"])})


def replaced(event, number, **fields):
    return lambda lines: [
        {**e, **fields} if (e["event"], e.get("round")) == (event, number) else e for e in lines
    ]


def restart(number):
    """The server's line of a start after a round."""
    return line("start", study="s", round=number)


SERVER = {
    "committed after": removed("round", 2),
    "started after": inserted("round", 2, restart(1)),
    "a message of round 1 after round 2": inserted("round", 2, line("received", silo="a", round=1)),
    "has the members": replaced("round", 2, present=["a", "b"]),
    "two answers of a are used": inserted("admitted", 2, line("admitted", silo="a", round=2)),
    "which has not answered": removed("received", 2, "b"),
    "['b'] present or used": removed("admitted", 2, "b"),
    "different answers of a": inserted(
        "received", 2, line("received", silo="a", round=2, uplink="x")
    ),
    "agreed were 3": replaced("sum", 2, silos=["a", "b"]),
    "sums over": inserted("sum", 2, line("sum", round=2, silos=["a", "b", "c", "d"])),
    "without a reason": inserted("received", 2, line("unused", silo="a", round=2, reason="so")),
    "no reason why": replaced("round", 2, present=["a", "b"], absent=["c"]),
}
SILO = {
    "trained round 2 2 times": visited({"round": 2, "trained": True}),
    "its key is in 2 sums": audited(
        inserted("sum", 2, line("sum", study="s", round=2, silos=[*SILOS, "d"]))
    ),
    "masked for ['a', 'b']": audited(replaced("sum", 2, silos=["a", "b"])),
    "has not masked for the sum": audited(removed("sum", 2)),
    "a refusal without a reason": audited(inserted("sum", 2, line("refused", study="s"))),
    "before it was accepted": audited(lambda lines: lines[1:]),
    "released twice": entered(lambda entries: [*entries, entries[1]]),
    "not in its ledger": entered(lambda entries: entries[:2]),
}


def test_an_undisturbed_history_keeps_all_rules():
    assert violations(history()) == []


ROUND1, ROUND2, ROUND3 = (round_of(n, summed=True) for n in (1, 2, 3))
KILLED = {
    "after a round": [restart(0), *ROUND1, *ROUND2, restart(2), *ROUND3],
    "before the line of a round": [restart(0), *ROUND1, *ROUND2[:-1], restart(2), *ROUND3],
    "within a round": [restart(0), *ROUND1, *ROUND2[:8], restart(1), *ROUND2, *ROUND3],
    "at the end": [restart(0), *ROUND1, *ROUND2, *ROUND3, restart(3), line("finished", round=3)],
    "never, but a round is tried twice": [restart(0), *ROUND1, *ROUND2[:-1], *ROUND2, *ROUND3],
}


@pytest.mark.parametrize("server", KILLED.values(), ids=KILLED)
def test_kills_between_and_within_rounds_and_a_second_try_break_no_rule(server):
    assert violations(history(lambda _: server)) == []


@pytest.mark.parametrize(("message", "server"), SERVER.items())
def test_a_server_that_breaks_a_rule_is_named(message, server):
    assert any(message in broken for broken in violations(history(server)))


@pytest.mark.parametrize(("message", "change"), SILO.items())
def test_a_silo_that_breaks_a_rule_is_named(message, change):
    broken = violations(history(change=change))
    assert any(message in problem for problem in broken)
    assert all("a" in problem.partition(":")[0] or "masked" in problem for problem in broken)


def test_a_broken_chain_is_named():
    assert violations(history(broken=("a: line 3",))) == [
        "an audit log's chain is broken: a: line 3"
    ]
