"""Clients' copies of each other's models: bit-identical to separate matrices, with each row stored
once.
"""

import numpy as np
import pytest
import torch

import pomona
from pomona.core.errors import CheckpointError
from pomona.core.round import Roster
from pomona.federation import stale_models
from pomona.federation.callbacks import StopAfter
from pomona.federation.exchange import ClientRequest
from pomona.federation.stale_models import StaleModels, _Entry
from pomona.methods.base import Copies, Initial, Rows
from pomona.storage.checkpoint import newest
from problems import a_round, digest_of_models, tiny
from representatives import representatives

pytestmark = pytest.mark.long

TINY = 1e-15  # of a machine's memory: less than a byte
MEMBERS = {"joins": {"3": 2}, "leaves": {"0": 3}, "unseen": [1], "adapt_rounds": 2}
BASE = {"clients": 6, "rounds": 5, "partition": {"name": "iid"}}


class ClientMatrices:
    """Matrices (n, N, d), of which an index (k, 1) takes k."""

    def __init__(self, matrices):
        self.matrices = matrices

    def __getitem__(self, index):
        return self.matrices[index.squeeze(1)]


class OwnMatrices:
    """Every client's copies of all models in its own matrix (N, d)."""

    def __init__(self, name, bank):
        self.bank, self.held, self.pending = bank, {}, {}

    def add_clients(self, ids, first):
        if len(first.index):
            self.held |= {i: first.bank[first.index].clone() for i in ids}

    def received(self, visit, rows):
        if not self.held:
            return rows
        matrices = {i: self.held[i].clone() for i in visit.ids}
        for matrix, index in zip(matrices.values(), rows.index, strict=True):
            matrix[~visit.roster.member_mask] = 0
            matrix[index] = rows.bank[index]
        self.pending = matrices if visit.trains else {}
        return Copies(
            ClientMatrices(torch.stack(list(matrices.values()))),
            torch.arange(len(matrices)).unsqueeze(1),
            rows.index,
        )

    def commit(self, ids):
        self.held |= {i: self.pending[i] for i in ids if i in self.pending}

    def stored(self, ids):
        return {}


def apple(step="paper", init="common", budget=2, **settings):
    return tiny(
        "apple", {"budget": budget, "core_step": step, "core_init": init}, **{**BASE, **settings}
    )


HARDEST = ("independent", {"participation": 0.5, "membership": MEMBERS})
VARIANTS = [
    (step, init, settings)
    for step in ("paper", "local")
    for init, settings in [
        ("common", {}),
        ("common", {"membership": MEMBERS}),
        ("common", {"participation": 0.5}),
        HARDEST,
        ("independent", {"rows_per_call": 2}),
    ]
]


@pytest.mark.parametrize(
    ("step", "init", "settings"),
    representatives(VARIANTS, [("paper", *HARDEST), ("local", "common", {})]),
)
def test_a_bank_gives_what_matrices_of_their_own_would(step, init, settings, tmp_path, monkeypatch):
    """For any number of workers, in memory and in files."""
    with monkeypatch.context() as patch:
        patch.setattr(stale_models, "_Entry", OwnMatrices)
        reference = pomona.run(apple(step, init, workers=1, **settings), tmp_path / "own")
    for workers, share in ((1, 0.5), (2, 0.5), (3, TINY)):
        folder = tmp_path / f"{workers} {share}"
        bank = pomona.run(
            apple(step, init, workers=workers, state_memory=share, **settings), folder
        )
        assert digest_of_models(folder) == digest_of_models(tmp_path / "own")
        assert bank.evaluations == reference.evaluations
        assert bank.unseen == reference.unseen
        for a, b in zip(bank.rounds, reference.rounds, strict=True):
            assert (a.loss, a.bytes_down, a.bytes_up) == (b.loss, b.bytes_down, b.bytes_up)
            assert np.array_equal(a.info["dr"], b.info["dr"], equal_nan=True)


WORKERS_AND_MEMORY = [((1, 0.5), (2, TINY)), ((2, 0.5), (2, 0.5)), ((3, TINY), (1, 0.5))]
RESUMPTIONS = [(step, *setups) for step in ("paper", "local") for setups in WORKERS_AND_MEMORY]


@pytest.mark.parametrize(
    ("step", "first", "second"), representatives(RESUMPTIONS, [RESUMPTIONS[0], RESUMPTIONS[-1]])
)
def test_a_run_goes_on_with_its_copies(step, first, second, tmp_path, monkeypatch):
    """However many workers there were, and wherever their copies lay; and its checkpoint is that of
    the whole run.
    """
    settings = {"membership": MEMBERS, "participation": 0.6}
    uninterrupted = pomona.run(apple(step, workers=1, **settings), tmp_path / "whole")
    for number in (2, 4):
        workers, share = first
        config = apple(step, workers=workers, state_memory=share, **settings)
        with pytest.raises(KeyboardInterrupt):
            pomona.run(config, tmp_path / "parts", StopAfter(number, committed=False), resume=True)
    workers, share = second
    resumed = pomona.run(
        apple(step, workers=workers, state_memory=share, **settings),
        tmp_path / "parts",
        resume=True,
    )
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert resumed.evaluations == uninterrupted.evaluations
    assert resumed.unseen == uninterrupted.unseen
    saved = [newest(tmp_path / name / "checkpoints")[0] for name in ("parts", "whole")]
    assert len({stored.path.name.rpartition("-")[0] for stored in saved}) == 1
    assert saved[0].tensors.keys() == saved[1].tensors.keys()
    assert all(
        torch.equal(saved[0].tensors[path], saved[1].tensors[path]) for path in saved[0].tensors
    )


def test_a_checkpoint_holds_each_version_once(tmp_path):
    """Six clients and two downloads a round: after 4 rounds at most 1 + 3 x 6 rows of 36, which all
    tables share.
    """
    pomona.run(apple(rounds=4, workers=2), tmp_path)
    tensors = newest(tmp_path / "checkpoints")[0].tensors
    rows = [tensors[path] for path in tensors if path.startswith("row.")]
    tables = [tensors[f"copies.{i}.cores"] for i in range(6)]
    assert len({row.numpy().tobytes() for row in rows}) == len(rows) <= 1 + 3 * 6
    assert sorted(set(torch.cat(tables).tolist())) == list(range(len(rows)))
    assert len(rows) < 36 == sum(map(len, tables))


def test_a_run_without_a_budget_keeps_no_copies(tmp_path):
    pomona.run(tiny("apple", rounds=1, workers=2), tmp_path)
    assert not [
        path
        for path in newest(tmp_path / "checkpoints")[0].tensors
        if path.startswith(("copies", "row"))
    ]


# By hand: three clients, models of one number


ROSTER = Roster((1, 1, 1))


def first(initial, roster):
    return Rows.broadcast(initial(), len(roster))


def keeping():
    copies = StaleModels.in_memory({"models": first}, Initial(lambda _: torch.tensor([7.0]), ()))
    copies.add_clients((0, 1, 2), ROSTER, None)
    return copies


def rows_of(copies, models, index, ids=(0, 1, 2), roster=ROSTER, trains=True):
    """The clients' copies after a downlink, by row."""
    visit = ClientRequest(a_round(), roster, ids, trains)
    entry = Rows(torch.tensor(models).unsqueeze(1), torch.tensor(index))
    return copies.received(visit, {"models": entry})["models"].rows().squeeze(2).tolist()


def bank(copies):
    return copies._entries["models"].bank


def test_a_copy_is_what_came_last():
    copies = keeping()
    assert rows_of(copies, [1.0, 2.0, 3.0], [[1], [0], [0]]) == [[7, 2, 7], [1, 7, 7], [1, 7, 7]]
    copies.commit((0, 2))  # 1 was absent after all
    assert rows_of(copies, [4.0, 5.0, 6.0], [[2], [2], [1]]) == [[7, 2, 6], [7, 7, 6], [1, 5, 7]]
    copies.commit((0, 1, 2))
    assert copies.models_of(0)["models"].squeeze(1).tolist() == [7, 2, 6]


def test_a_place_that_is_left_empty_brings_nothing():
    assert rows_of(keeping(), [1.0, 2.0, 3.0], [[1, 0], [1, 1], [2, 2]]) == [
        [7, 2, 7],
        [7, 7, 7],
        [7, 7, 7],
    ]


def test_who_is_no_member_has_a_row_of_zeros():
    copies = keeping()
    rows_of(copies, [1.0, 2.0, 3.0], [[1], [2], [1]])
    copies.commit((0, 1, 2))
    assert rows_of(copies, [1.0, 2.0, 3.0], [[1], [0]], (0, 1), ROSTER.only((0, 1))) == [
        [7, 2, 0],
        [1, 7, 0],
    ]
    copies.commit((0, 1))
    # and it stays so until something comes
    assert rows_of(copies, [1.0, 2.0, 3.0], [[1]], (0,)) == [[7, 2, 0]]


def test_each_row_of_a_visit_is_looked_up_once(monkeypatch):
    copies, rows, number = keeping(), [], _Entry._number

    def noted(self, row):
        rows.append(float(row))
        return number(self, row)

    monkeypatch.setattr(_Entry, "_number", noted)
    rows_of(copies, [1.0, 2.0, 3.0], [[1], [0]], (0, 1), ROSTER.only((0, 1)))
    assert rows == [0, 2, 1]  # the absent client's, and what each asks for


def test_a_visit_that_does_not_train_keeps_nothing():
    copies = keeping()
    assert rows_of(copies, [1.0, 2.0, 3.0], [[1], [0], [0]], trains=False)[0] == [7, 2, 7]
    copies.commit((0, 1, 2))
    assert copies.models_of(0)["models"].squeeze(1).tolist() == [7, 7, 7]


def test_who_joins_has_copies_of_the_model_that_it_starts_from():
    copies = keeping()
    copies.add_clients((1,), ROSTER, torch.tensor([9.0]))
    assert [copies.models_of(i)["models"].squeeze(1).tolist() for i in (0, 1)] == [
        [7, 7, 7],
        [9, 9, 9],
    ]


def test_rows_of_the_same_bytes_are_one_and_go_with_the_last_who_has_them():
    copies = keeping()
    assert len(bank(copies)._rows) == 1
    for _ in range(2):  # the same models, asked for by others: nobody trained
        rows_of(copies, [1.0, 2.0, 3.0], [[1], [0], [0]])
        copies.commit((0, 1, 2))
        assert len(bank(copies)._rows) == 3  # 7, 1 and 2
    rows_of(copies, [4.0, 5.0, 6.0], [[1], [0], [0]])
    copies.commit((0, 1, 2))
    rows_of(copies, [4.0, 5.0, 6.0], [[1], [0], [0]])
    assert sorted(float(row[0]) for row in bank(copies)._rows.values()) == [4, 5, 7]
    assert rows_of(copies, [0.0, -0.0, 6.0], [[1], [0], [0]]) == [[7, 0, 7], [0, 7, 7], [0, 7, 7]]
    assert len(bank(copies)._rows) == 5  # 0 and -0 are not the same bytes


def test_stored_copies_come_back_as_they_were_and_missing_ones_are_said():
    copies = keeping()
    rows_of(copies, [1.0, 2.0, 3.0], [[1], [0], [0]])
    copies.commit((0, 1, 2))
    stored = copies.stored((0, 2))
    assert {path: t.tolist() for path, t in stored.items()} == {
        "copies.0.models": [0, 1, 0],
        "copies.2.models": [2, 0, 0],
        "row.0.models": [7.0],
        "row.1.models": [2.0],
        "row.2.models": [1.0],
    }
    restored = keeping()
    restored.restore((0, 2), stored, ROSTER)
    assert all(
        torch.equal(restored.models_of(i)["models"], copies.models_of(i)["models"]) for i in (0, 2)
    )
    assert restored.stored((0, 2)).keys() == stored.keys()
    for path in ("copies.2.models", "row.1.models"):
        with pytest.raises(CheckpointError, match=rf"missing: {path}"):
            keeping().restore((0, 2), {k: v for k, v in stored.items() if k != path}, ROSTER)
