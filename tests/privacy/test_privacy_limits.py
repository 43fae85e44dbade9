"""Accounting, ledger, key store and settings, each at its limits, by hand-computed numbers."""

import hashlib
import json
import math
import os
import warnings
from itertools import count

import pytest
import torch
from private_problem import privacy

from pomona.core.errors import BudgetError, ConfigError, LockedError, PrivacyError, StorageError
from pomona.core.rng import stream
from pomona.core.training_settings import Passes
from pomona.privacy import accounting
from pomona.privacy.accounting import (
    Budget,
    Event,
    Gradients,
    effective,
    epsilon,
    of_groups,
    projected,
    rate,
    with_room,
)
from pomona.privacy.ledger import Draw, Head, Ledger, LedgerEntry, Position
from pomona.privacy.noise import KeyStore, fingerprint, gaussian, poisson, require_sole
from pomona.privacy.settings import (
    RELEASES,
    Release,
    acknowledged,
    groups_note,
    in_sums,
    release_problems,
    require_acknowledged,
    uncovered,
)

# Accounting.


def has_events(history, *expected):
    """Whether a history has just these events, each by sigma and q, and its count."""
    counted = sorted((*event, count) for event, count in history.items())
    return [n for e in counted for n in e] == pytest.approx(
        [n for e in sorted(expected) for n in e]
    )


def test_the_numerical_accountant_is_asked_up_to_where_its_grid_fits(monkeypatch):
    history = {Event(1.0, 1.0): 20}  # in closed form
    renyi, terms = epsilon(privacy(), history), privacy(accountant="prv")
    monkeypatch.setattr(accounting, "_numerical_epsilon", lambda *_: renyi / 2)
    monkeypatch.setattr(accounting, "CONFIDENT", renyi)
    assert epsilon(terms, history) == renyi / 2
    monkeypatch.setattr(accounting, "CONFIDENT", renyi * 0.99)
    assert epsilon(terms, history) == renyi
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epsilon(privacy(), {Event(50.0, 1.0): 1})  # the best order is the largest
    assert caught == []


def test_noise_of_others_and_rows_of_a_group_change_an_event():
    """sigma sqrt(1 + (honest - 1) q^2); of two rows sigma / 2 and 1 - (1 - q)^2."""
    assert effective(2.0, 0.5, 1) == 2.0
    assert effective(2.0, 0.5, 3) == pytest.approx(2.0 * math.sqrt(1.5))
    assert of_groups({Event(2.0, 0.25): 3}, 2) == {Event(1.0, 0.4375): 3}


def test_a_sample_is_in_a_batch_with_a_probability():
    assert [rate(n, 4) for n in (3, 4, 16)] == [1.0, 1.0, 0.25]


def test_a_limit_leaves_room_for_rounding_and_the_grid():
    assert with_room(privacy(), 10.0) == pytest.approx(10.00000001, rel=1e-11)
    assert with_room(privacy(accountant="prv"), 10.0) == pytest.approx(10.03000001, rel=1e-11)


A, B = Event(1.0, 0.5), Event(2.0, 0.5)
QUERIES = [
    # limit, count of B, counts of A in order; epsilon is the count of all here. The accountant is
    # asked of each history beyond the last safe one and, while the stride reaches one release,
    # of one that is longer by the stride, which halves when that is too much
    (6, 0, [1, 2, 3, 6, 7]),
    (8, 0, [1, 2, 3, 6, 7, 14, 11, 9, 8, 9, 9]),
    (9, 1, [2, 4, 4, 8, 8, 16, 13, 11, 9, 11, 10]),
]


@pytest.mark.parametrize(("limit", "b", "expected"), QUERIES)
def test_a_budget_asks_the_accountant_at_ever_longer_histories(limit, b, expected, monkeypatch):
    totals = []
    monkeypatch.setattr(
        accounting, "epsilon", lambda _, history: totals.append(sum(history.values())) or totals[-1]
    )
    budget = Budget(privacy(epsilon_budget=limit))
    other_events = {B: b} if b else {}
    allowed = next(n for n in count(1) if not budget.allows({A: n, **other_events}))
    assert allowed - 1 + b == limit
    assert totals == expected


def test_a_budget_looks_at_every_event(monkeypatch):
    monkeypatch.setattr(accounting, "epsilon", lambda _, history: sum(history.values()))
    budget = Budget(privacy(epsilon_budget=5.0))
    assert not Budget(privacy(epsilon_budget=0.5)).allows({A: 1})
    assert budget.allows({A: 2})
    assert not budget.allows({A: 2, B: 9})
    assert Budget(privacy()).allows({A: 10**9})


PASSES, Q = Passes(2), 4 / 12  # of 12 samples in batches of 4: three a pass, six a round
PROJECTED = [
    ([Gradients()], [(1.0, Q, 12)]),
    ([Gradients(per_batch=4)], [(0.5, Q, 12)]),
    ([Gradients(epochs=1)], [(1.0, Q, 6)]),
    ([Gradients(once=True)], [(1.0, Q, 6)]),
    ([Gradients(evaluates=True)], [(1.0, Q, 18)]),
    ([Gradients(noised=False)], [(0.0, Q, 12)]),
    ([Gradients(per_batch=0)], []),
    ([Gradients(), Gradients(purpose="mixing", per_batch=4)], [(1.0, Q, 12), (0.5, Q, 12)]),
    # of the same batches, the first six twice
    ([Gradients(epochs=1), Gradients()], [(math.sqrt(0.5), Q, 6), (1.0, Q, 6)]),
]


@pytest.mark.parametrize(("gradients", "history"), PROJECTED)
def test_the_projection_of_two_rounds(gradients, history):
    assert has_events(projected(privacy(), 12, 4, gradients, PASSES, 2), *history)
    assert projected(privacy(), 0, 4, gradients, PASSES, 2) == {}


def test_the_noise_of_others_counts_in_the_training_step_alone():
    terms, gradients = privacy(honest=3), [Gradients(), Gradients(purpose="mixing")]
    shared = math.sqrt(1 + 2 * Q * Q)
    assert has_events(projected(terms, 12, 4, gradients, PASSES, 2), (shared, Q, 12), (1.0, Q, 12))


# The ledger.

DRAW = Draw(1, "training", 0, 20, 5)  # q = 0.25


def entry(release="a", sigma=1.0, draw=DRAW, **fields):
    return LedgerEntry(draw, sigma, release, **fields)


def ledger(folder, *entries):
    Ledger.create(folder / "ledger.jsonl", Head(3, "k", None))
    opened = Ledger.open(folder / "ledger.jsonl")
    for e in entries:
        opened.append(e)
    return opened


def test_a_line_has_what_is_not_usual_and_is_read_as_it_was_written():
    usual = {"n", "size", "purpose", "release", "round", "sigma", "step"}
    for fields, unusual in (
        ({}, set()),
        ({"honest": 2}, {"honest"}),
        ({"unit": "group", "honest": 3}, {"honest", "unit"}),
    ):
        written = entry(**fields)
        assert [*written.line()] == sorted(usual | unusual)
        assert LedgerEntry.from_line(written.line()) == written
    with pytest.raises(ValueError, match="unit is 'ward'"):
        LedgerEntry.from_line({**entry().line(), "unit": "ward"})


def test_a_ledger_is_a_file_of_its_own_that_others_cannot_read(tmp_path):
    assert ledger(tmp_path).head == Head(3, "k", None)
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to("ledger.jsonl")
    for path in ("link", "missing"):
        with pytest.raises(PrivacyError, match="no privacy ledger"):
            Ledger.open(tmp_path / path)


def test_what_is_appended_after_reading_is_read_again(tmp_path):
    ledger(tmp_path, entry("a"))
    reopened = Ledger.open(tmp_path / "ledger.jsonl")
    for release in ("b", "a", "c"):  # one is known
        reopened.append(entry(release))
    position, history = reopened.position(), reopened.history()
    del reopened
    last = Ledger.open(tmp_path / "ledger.jsonl")
    assert (last.position(), last.history()) == (position, history)
    assert position.entries == 3
    assert has_events(history, (3**-0.5, 0.25, 1))
    assert last.history(entry("a")) == history
    with pytest.raises(PrivacyError, match="rolled back"):
        last.require(Position(4, position.chain))


def test_planned_releases_add_to_their_batches_and_others_noise_is_no_own(tmp_path):
    other_draw = Draw(1, "training", 1, 20, 5)
    opened = ledger(tmp_path, entry("a", 2.0, honest=3), entry("b", 2.0, honest=3))
    shared = 2.0 * math.sqrt(1 + 2 / 16)
    assert has_events(opened.own_events(), (math.sqrt(2), 0.25, 1))
    assert has_events(opened.history(), (shared / math.sqrt(2), 0.25, 1))
    entries = [entry("a", 2.0, honest=3), entry("c", 2.0, honest=3), entry("d", 3.0, other_draw)]
    planned = opened.planned([*entries, entry("e", 3.0, other_draw)])
    assert has_events(planned, (shared / math.sqrt(3), 0.25, 1), (3 / math.sqrt(2), 0.25, 1))
    assert opened.units() == {"row"}


def test_a_further_release_takes_its_batch_from_those_of_equal_noise(tmp_path):
    opened = ledger(tmp_path, entry("a"), entry("b", draw=Draw(1, "training", 1, 20, 5)))
    assert has_events(opened.history(), (1.0, 0.25, 2))
    assert has_events(opened.history(entry("c")), (1.0, 0.25, 1), (math.sqrt(0.5), 0.25, 1))


def test_a_line_that_is_not_durable_is_taken_back(tmp_path, monkeypatch):
    opened, file, write = ledger(tmp_path, entry("a")), tmp_path / "ledger.jsonl", os.write
    content = file.read_bytes()

    def fail(_):
        raise OSError(28, "No space left on device")

    for name, fault in (("write", lambda handle, line: write(handle, line[:9])), ("fsync", fail)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fault)
            with pytest.raises(StorageError, match="was not made"):
                opened.append(entry("b"))
        assert file.read_bytes() == content
    opened.append(entry("b"))
    assert opened.position().entries == 2
    with pytest.raises(LockedError):
        Ledger.open(file)


def test_a_torn_line_is_dropped_and_a_changed_one_or_none_refused(tmp_path):
    file = tmp_path / "ledger.jsonl"
    ledger(tmp_path, entry("a"))
    sound = file.read_bytes()
    file.write_bytes(sound + b'{"chain": "0')
    Ledger.open(file)
    assert file.read_bytes() == sound
    for content, message in ((sound.replace(b"1.0", b"9.0"), "line 2.*checksum"), (b"", "empty")):
        file.write_bytes(content)
        with pytest.raises(PrivacyError, match=message):
            Ledger.open(file)


# The key store.

QUESTION, TOTAL = torch.tensor([0.5, -1.0]), torch.tensor([0.25, 0.5, 2.0]).double()


def key_of(folder):
    return bytes.fromhex((folder / "client-00" / "key").read_text())


RELEASE_NAMES = [
    # terms, purpose, what the name has beside draw, sigma and C
    ({}, "training", b""),
    ({"unit": "group"}, "training", b"group"),
    ({"honest": 2}, "training", b"run-7"),
    ({"honest": 2, "unit": "group"}, "training", b"grouprun-7"),
    ({"honest": 2}, "mixing", b""),
    ({"honest": 2, "seed": 5}, "training", b""),
]


@pytest.mark.parametrize(("options", "purpose", "extra"), RELEASE_NAMES)
def test_a_releases_name_and_noise_stay_what_they_are(options, purpose, extra, tmp_path):
    """Another version gives the same release the same noise, or it would cost twice."""
    terms = privacy(**{"seed": None, "noise_multiplier": 3.0, **options})
    store, draw = KeyStore.open(tmp_path, 0, terms, run="run-7"), Draw(4, purpose, 2, 10, 5)
    released = store.release(draw, QUESTION, TOTAL)
    key = key_of(tmp_path)
    name = hashlib.blake2b(key=key, digest_size=32)
    name.update(f"(Draw(round=4, purpose='{purpose}', step=2, n=10, size=5), 3.0, 0.7)".encode())
    for data in (extra, QUESTION.numpy().tobytes(), TOTAL.numpy().tobytes()):
        name.update(data)
    lines = (tmp_path / "client-00" / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["release"] == name.hexdigest()
    secret = int.from_bytes(key, "little")
    noise = gaussian(3, stream(secret, "noise", int(name.hexdigest(), 16)))
    assert torch.equal(released, TOTAL + 3.0 * 0.7 * noise)
    sampled = poisson(10, 0.5, stream(secret, f"sample {purpose}", 4, 2, 10, 5))
    assert store.batch(draw).tolist() == sampled.tolist()


def test_seeds_have_sixty_bits_and_follow_batch_and_question(tmp_path):
    store = KeyStore.open(tmp_path, 0, privacy())
    draws = [Draw(1, "training", step, 10, 5) for step in range(20)]
    views = [store.view_seed(d) for d in draws]
    forward = [store.forward_seed(d, q) for d in draws[:10] for q in (QUESTION, -QUESTION)]
    assert len({*views, *forward}) == 40
    assert max(*views, *forward) < 2**60
    assert store.view_seed(draws[3]) == views[3]
    assert store.batch(draws[0], torch.tensor([], dtype=torch.long)).tolist() == []


def test_a_key_store_is_private_and_continues_from_a_checkpoint(tmp_path):
    folder = tmp_path / "new" / "stores"
    position = KeyStore.open(folder, 0, privacy()).position()
    store = folder / "client-00"
    modes = [path.stat().st_mode & 0o777 for path in (store, store / "key", store / "ledger.jsonl")]
    assert modes == [0o700, 0o600, 0o600]
    assert len(fingerprint(key_of(folder))) == 32
    assert KeyStore.open(folder, 0, privacy(), checkpoint=position).position() == position
    with pytest.raises(PrivacyError, match="rolled back"):
        KeyStore.open(folder, 0, privacy(), checkpoint=Position(1, position.chain))
    (store / "key").chmod(0o640)
    with pytest.raises(PrivacyError, match="chmod 600"):
        KeyStore.open(folder, 0, privacy())
    for path in store.iterdir():
        path.unlink()
    with pytest.raises(PrivacyError, match="restore both"):
        KeyStore.open(folder, 0, privacy(), checkpoint=position)
    assert [*store.iterdir()] == []


def test_a_key_its_ledger_its_client_and_its_origin_belong_together(tmp_path):
    KeyStore.open(tmp_path, 0, privacy()).release(Draw(1, "training", 0, 10, 10), QUESTION, TOTAL)
    with pytest.raises(ConfigError, match="give a new folder"):
        KeyStore.open(tmp_path, 0, privacy(seed=6))
    folder = tmp_path / "client-00"
    folder.rename(tmp_path / "client-01")
    with pytest.raises(PrivacyError, match="another client or key"):
        KeyStore.open(tmp_path, 1, privacy())
    (tmp_path / "client-01").rename(folder)
    (folder / "key").unlink()
    with pytest.raises(PrivacyError, match="the key of a privacy ledger is missing"):
        KeyStore.open(tmp_path, 0, privacy())


def test_a_key_is_the_systems_unless_a_test_seed_makes_it_and_a_folders_only_one(tmp_path):
    for seed, distinct in ((None, 2), (5, 1)):
        folders = [tmp_path / f"{seed}-{name}" for name in "ab"]
        for folder in folders:
            KeyStore.open(folder, 0, privacy(seed=seed))
        assert len({key_of(folder) for folder in folders}) == distinct
    require_sole(folder, 0)
    with pytest.raises(PrivacyError, match=r"holds client-00 .*client-01"):
        require_sole(folder, 1)
    (folder / "client-00" / "key").write_text("ab" * 31)
    with pytest.raises(PrivacyError, match="not a key of 32 bytes"):
        KeyStore.open(folder, 0, privacy())


def test_a_release_beyond_the_projected_cost_or_the_budget_is_not_made(tmp_path):
    cost = epsilon(privacy(), {Event(1.0, 1.0): 1})
    for name, terms, limit, message in (
        ("whole", privacy(), cost, "projected highest cost"),
        ("budget", privacy(epsilon_budget=cost), math.inf, "privacy.epsilon_budget"),
    ):
        store = KeyStore.open(tmp_path / name, 0, terms)
        store.within(limit)
        store.release(Draw(1, "training", 0, 10, 10), QUESTION, TOTAL)
        with pytest.raises(BudgetError, match=message):
            store.release(Draw(1, "training", 1, 10, 10), QUESTION, TOTAL)
        assert store.position().entries == 1
        assert store.epsilon() == store.epsilon_alone() == pytest.approx(cost)
        assert store.epsilon(2) > store.epsilon()
    store = KeyStore.open(tmp_path / "exact", 0, privacy())
    store.unprotected(Draw(1, "training", 0, 10, 10), QUESTION)
    assert store.epsilon() == math.inf


# Settings.


def test_noise_is_none_or_enough_and_counts_for_the_training_step():
    for sigma in (0.0, 1e-3, 1.0):
        assert privacy(noise_multiplier=sigma).noise_multiplier == sigma
    with pytest.raises(ValueError, match="so little noise"):
        privacy(noise_multiplier=9.9e-4)
    shared = privacy(honest=3)
    assert [shared.counted(p) for p in ("training", "mixing")] == [3, 1]
    assert shared.alone == privacy(honest=1)
    assert privacy(unit="group").protects == "one group of samples"
    assert privacy().protects == "one sample"


def test_notes_have_the_numbers_of_silos_rows_and_epsilon():
    assert "sums of 5 clients" in in_sums(3, 5)
    assert "up to 2 may be" in in_sums(3, 5)
    for epsilons, phrase in (
        ([1.0, 2.5], "epsilon is 2.5"),
        ([1.0, None], "without bound"),
        ([math.inf, 1.0], "without bound"),
    ):
        note = groups_note([1, 7], epsilons)
        assert "up to 7 training rows" in note
        assert phrase in note


UNCOVERED = [
    # terms, arguments, what they release beside sample counts and metrics, in order
    ({}, {}, []),
    ({"epsilon_budget": None}, {}, ["unlimited-epsilon"]),
    ({"honest": 2}, {}, ["noise-of-others"]),
    ({}, {"content": "table"}, ["feature-moments"]),
    ({}, {"moments_found": True}, ["feature-moments"]),
    ({}, {"content": "text"}, ["vocabulary"]),
    (
        {},
        {"classes_found": True, "method_releases": [RELEASES["training-loss"]]},
        ["training-loss", "class-names"],
    ),
]


@pytest.mark.parametrize(("options", "arguments", "names"), UNCOVERED)
def test_each_release_is_named_in_order(options, arguments, names):
    terms = privacy(**{"epsilon_budget": 8.0, "acknowledge": (), **options})
    releases = ["sample-counts", "metrics", *names]
    assert [r.name for r in uncovered(terms, **arguments)] == releases
    (refused,) = release_problems(terms, [9], **arguments)
    assert all(RELEASES[name].content in refused for name in releases)
    accepted = terms.model_copy(update={"acknowledge": tuple(releases)})
    assert [*release_problems(accepted, [9], **arguments)] == []


def test_delta_is_below_one_over_the_samples_of_the_largest_client():
    accepted = ("sample-counts", "metrics", "unlimited-epsilon")
    for delta, sizes, fits in (
        (0.25, [3, 2], True),
        (0.25, [2, 4], False),
        (0.6, [1], True),
        (0.6, [], True),
    ):
        problems = release_problems(privacy(delta=delta, acknowledge=accepted), sizes)
        assert (
            [*problems] == []
            if fits
            else ["not below 1 / 4" in line for line in problems] == [True]
        )


def test_an_unknown_name_is_one_problem_and_not_among_the_names_to_accept():
    unknown, missing = release_problems(privacy(acknowledge=("metric", "metrics")), [9])
    assert "'metric'" in unknown
    accepted = ["metrics", "sample-counts", "unlimited-epsilon"]
    assert missing.endswith(f"privacy.acknowledge = {accepted}")


def test_acknowledged_releases_are_the_general_ones_and_the_methods():
    release = Release("own", "something", "leave it")
    terms = privacy(acknowledge=("metrics", "own"))
    assert acknowledged(terms, [release]) == (RELEASES["metrics"], release)
    assert acknowledged(terms, []) == (RELEASES["metrics"],)
    require_acknowledged(terms, "metrics")
    with pytest.raises(ConfigError, match="class-names"):
        require_acknowledged(terms, "class-names")
