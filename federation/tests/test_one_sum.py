"""The sum of a round without a federation around it: the silos' parts, the server's sum of them,
and the reason of each silo that is not in it.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import encoded
from pomona.core.round import Roster
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Arrival, ClientRequest, Reply
from pomona.methods.base import Rows
from pomona.testing.problems import a_round
from pomona_federation.messages.message_bodies import (
    DownlinkEntry,
    EntryForm,
    MaskKey,
    Refusal,
    SumRequest,
    Task,
)
from pomona_federation.messages.message_bus import Message
from pomona_federation.messages.tensor_bytes import Encoding, new_secret, public, sha256
from pomona_federation.server import masked_sums
from pomona_federation.server.masked_sums import MaskedSums
from pomona_federation.server.round_messages import OutgoingTask
from pomona_federation.silo import masked_part
from pomona_federation.silo.masked_part import MaskedPart
from problems import tiny

TERMS = SecureAggregation(max_norm=8.0, minimum=2)
WORD = 2**27  # 2^(32 - 2) / max_norm: the integer that stands for 1
RUN, NUMBER, PLACES = "ab", 2, 4
NAMES = [f"silo-{i}" for i in range(PLACES)]
CAME = torch.tensor([257 / 256, 2.0, 3.0, 0.0])  # the first is 1 in bf16
DOWN = {"model": Rows.broadcast(CAME, PLACES)}
MOVED = np.array([[1.0, -2.0, 0.5, 0.0], [0.25, 1.0, -1.0, 0.5]])
MASK = np.array([2**31, 5, 2**32 - 1, 7], np.uint32)


def task(place=0, number=NUMBER, **fields):
    entry = DownlinkEntry(
        form=EntryForm(many=False, dtype="F32", width=4), index=(0,), rows={0: "1" * 64}
    )
    about = {"agreement": "0" * 64, "run": RUN, "trains": True, "watched": (), "settled": 0}
    about |= {"sizes": (1,) * PLACES, "downlink": {"model": entry}}
    return Task(**{**about, "number": number, "place": place, **fields})


def part(place, numbers=None):
    """The bytes of a masked part, whose masks cancel over places 0 and 1."""
    numbers = MOVED[place] if numbers is None else numbers
    words = (np.array(numbers) * WORD).astype(np.int64).astype(np.uint32)
    return (words - MASK if place else words + MASK).tobytes()


def arrival(place, fault="", unread=None):
    return Arrival(Reply(place, fault=fault), RUN, NUMBER, 1, bytes_up=10, unread=unread)


def answer(data, signed=None):
    body = SimpleNamespace(
        silo="?", number=NUMBER, uplink=sha256(data if signed is None else signed)
    )
    return body, data


class Desk:
    """A server's sums over silos whose answers are written down: several of one silo, or none."""

    def __init__(self, folder, answers):
        self.path, self.answers, self.events, self.sent = folder / "sum.json", answers, [], {}
        registry = SimpleNamespace(
            path=folder / "members.json", entries=[SimpleNamespace(name=n) for n in NAMES]
        )
        audit = SimpleNamespace(write=lambda event, **fields: self.events.append((event, fields)))
        exchange = SimpleNamespace(run=RUN, registry=registry, audit=audit, send_all=self.send_all)
        reader = SimpleNamespace(verified=lambda *_: self.body)
        self.sums = MaskedSums(TERMS, exchange, reader, Encoding("bf16", PLACES - 1))

    def send_all(self, stage, sent, hear):
        assert self.path.exists()  # settled before anybody is asked
        self.sent = sent
        for place, one in sent.items():
            assert one.audit_fields == {"round": NUMBER, "task": one.body.digest}
            for body, data in self.answers.get(place, ()):
                self.body = body
                hear(place, Message("answer", "", enclosed={"uplink": data}))

    def round(self, keys, faults=(), number=NUMBER):
        """Sum over arrivals with these mask keys, in order, and others as ``faults`` has them."""
        tasks, arrivals = {}, {place: arrival(place) for place in keys} | dict(faults)
        for place in arrivals:
            mask = MaskKey(key=keys[place] * 32, signature="") if place in keys else None
            tasks[place] = OutgoingTask(NAMES[place], task(place, number), {}, mask=mask)
        request = ClientRequest(
            a_round(number), Roster((1,) * PLACES), tuple(range(PLACES)), expects={"model": CAME}
        )
        return self.sums.aggregate(arrivals, tasks, request, DOWN)

    @property
    def reasons(self):
        return {name: unused.reason.value for name, unused in self.sums.unused.items()}


BOTH = {0: [answer(part(0))], 1: [answer(part(1))]}
KEYS = {1: "bb", 0: "aa"}


def test_a_sum_is_the_change_of_all_from_what_they_received(tmp_path):
    desk = Desk(tmp_path, {**BOTH, 1: BOTH[1] * 2})  # one answers twice: its part counts once
    unread = arrival(3, unread=ProtocolError("unreadable"))
    got = desk.round(KEYS, {2: arrival(2, "diverged: x"), 3: unread})
    assert sorted(got) == [0, 1, 2, 3]
    expected = CAME.bfloat16().float() + torch.from_numpy(MOVED.sum(0)).float()
    for place in (0, 1):
        assert torch.equal(got[place].reply.uplink["model"], expected)
        assert got[place].bytes_up == 10 + len("uplink") + 4 * 4
        assert desk.sent[place].finished
        assert desk.sent[place].answered
    assert [got[place].reply.uplink for place in (2, 3)] == [{}, {}]
    assert desk.sums.unused == {}
    assert [event for event, _ in desk.events] == ["received"] * 3 + ["sum"]
    assert desk.events[-1][1] == {"round": NUMBER, "silos": ["silo-0", "silo-1"]}
    assert desk.round(KEYS).keys() == {0, 1}  # settled already


def test_of_two_equal_keys_the_first_to_come_counts(tmp_path):
    desk = Desk(tmp_path, BOTH)
    assert desk.round({**KEYS, 2: "aa"}).keys() == {0, 1}
    assert desk.reasons == {"silo-2": "sum-key"}
    assert "silo-0" in desk.sums.unused["silo-2"].detail


SHORT = part(1)[:-4]
REFUSED = (Refusal(silo="silo-1", fault="this silo rests"), b"")
REFUSES = (Refusal(silo="silo-1", fault="PROTOCOL: the same change over other silos"), b"")
MISSING = {"silo-0": "sum-short"}
REASONS = [
    ("too few", {0: "aa"}, {}, {"silo-0": "sum-short", "silo-2": "diverged"}),
    ("no answer", KEYS, {1: []}, MISSING | {"silo-1": "deadline"}),
    ("a refusal", KEYS, {1: [REFUSED]}, MISSING | {"silo-1": "silo-fault"}),
    ("changed", KEYS, {1: [answer(part(1), b"")]}, MISSING | {"silo-1": "signature"}),
    ("cut", KEYS, {1: [answer(SHORT)]}, MISSING | {"silo-1": "sum-part"}),
    (
        "not clipped",
        KEYS,
        {1: [answer(part(1, [9.0, 0.0, 0.0, 0.0]))]},
        {"silo-0": "sum-range", "silo-1": "sum-range"},
    ),
]


@pytest.mark.parametrize(
    ("keys", "answers", "reasons"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS]
)
def test_a_round_without_a_sum_says_why_of_each_silo(keys, answers, reasons, tmp_path):
    desk = Desk(tmp_path, BOTH | answers)
    assert desk.round(keys, {2: arrival(2, "diverged: x")}) == {}
    assert desk.reasons == reasons
    assert "sum" not in [event for event, _ in desk.events]
    named = desk.sums.unused["silo-0"].detail
    assert ("silo-1" in named) == (reasons["silo-0"] == "sum-short" and len(keys) == 2)


@pytest.mark.parametrize(
    ("ready", "summed", "reasons"),
    [
        ({0, 1}, {0, 1}, {}),
        ({0, 1, 2}, {0, 1}, {"silo-2": "sum-late"}),
        ({0, 2}, set(), {"silo-0": "sum-short", "silo-1": "sum-missing", "silo-2": "sum-late"}),
    ],
)
def test_a_settled_sum_is_of_the_same_silos_or_there_is_none(ready, summed, reasons, tmp_path):
    desk = Desk(tmp_path, BOTH)
    desk.round(KEYS)
    assert desk.round({place: f"a{place}" for place in ready}).keys() == summed
    assert desk.reasons == reasons


@pytest.mark.parametrize(("refusing", "kept"), [((0, 1), False), ((1,), True)])
def test_a_sum_that_all_its_silos_refuse_is_no_longer_settled(refusing, kept, tmp_path):
    """None has masked a part: the silo whose absence they refuse may be back."""
    assert Desk(tmp_path, BOTH | {key: [REFUSES] for key in refusing}).round(KEYS) == {}
    assert (tmp_path / "sum.json").exists() == kept


def test_a_sum_that_was_settled_before_stays_so_though_all_its_silos_refuse(tmp_path):
    """One may have masked its part before, and masks none in a sum over others."""
    Desk(tmp_path, {}).round(KEYS)
    Desk(tmp_path, {key: [REFUSES] for key in (0, 1)}).round(KEYS)
    assert masked_sums.read_json(masked_sums.SettledSum, tmp_path / "sum.json").places == (0, 1)


def test_what_was_settled_in_another_round_or_run_does_not_count(tmp_path):
    for run, number in ((RUN, NUMBER + 1), ("cd", NUMBER)):
        settled = masked_sums.SettledSum(run=run, number=number, places=(2, 3))
        masked_sums.write_json(tmp_path / "sum.json", settled)
        assert Desk(tmp_path, BOTH).round(KEYS).keys() == {0, 1}


# The silos' side.


@pytest.fixture
def silo(monkeypatch, tmp_path):
    """The part of silo 0, and what it has logged."""
    config = tiny("fedavg", secure_aggregation=TERMS.model_dump())
    events = []
    monkeypatch.setattr(masked_part, "audited", lambda _, event, **f: events.append((event, f)))
    members = SimpleNamespace(silo=[SimpleNamespace(name=name) for name in NAMES])
    agreed = SimpleNamespace(config=config, federation=members)
    signer = SimpleNamespace(sign=lambda kind, said: "ab")
    (tmp_path / "state").mkdir()
    kit = {"folder": tmp_path, "file": SimpleNamespace(name="silo-0")}
    made = SimpleNamespace(terms=agreed, signer=signer, **kit)
    return SimpleNamespace(part=MaskedPart.for_silo(made), events=events)


SECRETS = [new_secret() for _ in range(3)]
TRAINED = (SimpleNamespace(samples=1), MOVED[0].astype("<f4").tobytes())


def asked(
    silo, secrets=SECRETS[:2], kept=TRAINED, secret=SECRETS[0], terms=TERMS, place=0, **fields
):
    """A silo's part in a sum with these keys; ``log`` in its events."""
    keys = {i: MaskKey(key=public(s), signature="") for i, s in enumerate(secrets)}
    rounds = SimpleNamespace(answered=lambda _: kept, secret=lambda _: secret)
    log = SimpleNamespace(one_sum=lambda request: silo.events.append(("log", request)))
    provenance = SimpleNamespace(
        require_mask_keys=lambda _, keys: silo.events.append(("keys", sorted(keys)))
    )
    request = SumRequest(task=task(place, **{"sizes": (1, 3, 0, 0), **fields}), keys=keys)
    part = MaskedPart(silo.part.silo, terms)
    return part.answer(request, rounds, log, provenance)


def test_the_parts_of_two_silos_add_up_to_their_weighted_and_clipped_changes(silo):
    longer = MOVED[1] * (16 / np.linalg.norm(MOVED[1]))  # twice the largest norm
    other = (SimpleNamespace(samples=3), longer.astype("<f4").tobytes())
    (ours, first), (_, second) = (asked(silo), asked(silo, kept=other, secret=SECRETS[1], place=1))
    weights = Roster((1, 3), silo.part.silo.terms.config.largest_share).weights((0, 1)).tolist()
    clipped = [MOVED[0], longer / 2]
    open_ = [encoded(clipped[i].astype("<f4"), weights[i], TERMS) for i in (0, 1)]
    words = [np.frombuffer(data, np.uint32) for data in (first, second)]
    assert np.array_equal(words[0] + words[1], open_[0] + open_[1])
    assert not np.array_equal(words[0], open_[0])
    assert (ours.samples, ours.uplink) == (1, sha256(first))
    assert [event for event, _ in silo.events] == ["keys", "log", "sum"] * 2
    assert silo.events[2][1] == {"round": NUMBER, "silos": ("silo-0", "silo-1")}


@pytest.mark.parametrize(
    ("over", "refused"),
    [
        ({}, False),
        ({"sizes": (1, 2, 0, 0)}, True),  # a difference of multiples of the others' sum
        ({"sizes": (2, 6, 0, 0)}, False),  # the same weights
        ({"terms": TERMS.model_copy(update={"max_norm": 9.0})}, True),  # clips fewer changes
        ({"terms": TERMS.model_copy(update={"bits": 64})}, False),
        ({"secrets": SECRETS}, True),
    ],
)
def test_a_change_is_summed_in_another_run_on_the_same_terms_alone(over, refused, silo):
    sizes = {"sizes": (1, 3, 0, 0) if "secrets" not in over else (1, 3, 1, 0)}
    asked(silo, **sizes)
    outcome = pytest.raises(ProtocolError, match="another seed") if refused else nullcontext()
    with outcome:
        asked(silo, run="cd", **sizes | over)


def test_no_change_at_all_is_summed_over_any_silos(silo):
    """It reveals nothing, and no other seed would change it."""
    zeros = (SimpleNamespace(samples=1), bytes(16))
    for run, secrets in (("ab", SECRETS), ("cd", SECRETS[:2])):
        asked(silo, secrets, kept=zeros, run=run, sizes=(1, 3, 1, 0))


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"trains": False}, "has not trained"),
        ({"kept": None}, "has not trained"),
        ({"secret": ""}, "has not trained"),
        ({"secret": SECRETS[2]}, "without this silo's key"),
        ({"terms": SecureAggregation(max_norm=8.0, minimum=3)}, "over 2 silos"),
    ],
)
def test_a_sum_that_a_silo_takes_no_part_in_leaves_no_trace(over, said, silo):
    with pytest.raises(ProtocolError, match=said):
        asked(silo, **over)
    assert silo.events == []


def test_a_key_that_masks_nothing_spends_no_sum(silo, monkeypatch):
    def refuses(*_):
        raise ProtocolError("the key at place 1")

    monkeypatch.setattr(masked_part, "masked", refuses)
    with pytest.raises(ProtocolError, match="place 1"):
        asked(silo)
    assert "log" not in dict(silo.events)


def uplink(*numbers):
    return {"model": CAME + torch.tensor(numbers)}


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(0, fault="out of memory"), "out of memory"),
        (Reply(0, uplink(1.0, 0.0, 0.0, 0.0), fault="late"), "late"),
        (Reply(0), ""),
        (Reply(0, uplink(float("nan"), 0.0, 0.0, 0.0)), "diverged: "),
        (Reply(0, uplink(2.0, 0.0, 0.0, 0.0)), "too coarse"),
    ],
)
def test_without_a_usable_change_nothing_is_kept(reply, fault, silo, monkeypatch):
    monkeypatch.setattr(masked_part, "coarse", lambda *_: "too coarse")
    rest, kept, norm = silo.part.change(reply, task(), {"model": Rows.broadcast(CAME, 1)})
    assert rest.uplink == {}
    assert rest.fault.startswith(fault)
    assert bool(rest.fault) == bool(fault)
    assert (kept, norm) == (b"", 0.0)


@pytest.mark.parametrize(
    ("moved", "adds_up", "logged"),
    [(8.0, False, False), (16.0, False, True), (16.0, True, False), (8.0, True, False)],
)
def test_a_long_change_is_kept_and_logged_unless_noise_adds_up(
    moved, adds_up, logged, silo, monkeypatch
):
    """It is clipped in the sum alone: another study may clip it elsewhere."""
    lines = []
    monkeypatch.setattr(masked_part, "noise_adds_up", lambda _: adds_up)
    monkeypatch.setattr(masked_part.logger, "info", lambda *line: lines.append(line))
    _, kept, norm = silo.part.change(
        Reply(0, uplink(0.0, moved, 0.0, 0.0)), task(), {"model": Rows.broadcast(CAME, 1)}
    )
    assert norm == moved
    assert np.frombuffer(kept, "<f4").tolist() == [0.0, moved, 0.0, 0.0]
    assert bool(lines) == logged


def test_the_size_of_a_part_and_its_key(silo):
    for bits in (32, 64):
        part = MaskedPart(silo.part.silo, SecureAggregation(max_norm=8.0, bits=bits))
        assert part.size(bytes(16)) == 4 * bits // 8
    key = silo.part.key(task(), SECRETS[0])
    assert (key.key, key.signature) == (public(SECRETS[0]), "ab")


def test_a_sum_starts_from_what_all_have_received():
    for start in (None, "1" * 64):
        MaskedPart.require_common(task(start=start))
    with pytest.raises(ProtocolError, match="for this silo alone"):
        MaskedPart.require_common(task(start="2" * 64))
