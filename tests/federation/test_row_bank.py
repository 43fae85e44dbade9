"""Row banks: rows survive a round trip, in one process and in its forks, and space is reused."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import multiprocessing

from pomona.core.errors import StorageError
from pomona.storage import row_bank
from pomona.storage.row_bank import FileBank, MemoryBank, WorkMatrix

D = 5
BANKS = {
    "memory": MemoryBank,
    "shared": lambda: FileBank.in_memory(torch.zeros(D), 3),
    "disk": lambda: FileBank.on_disk(torch.zeros(D), 3),
}


def row(value):
    return torch.full((D,), float(value))


@pytest.mark.parametrize("storage", BANKS)
@settings(max_examples=30)
@given(
    steps=st.lists(
        st.one_of(st.just("put"), st.integers(0, 30), st.lists(st.integers(0, 30))), max_size=30
    )
)
def test_a_bank_holds_what_was_put_and_not_dropped(storage, steps):
    """Against a dictionary: rows are put, looked at by number, all together, and dropped."""
    bank, stored, ever = BANKS[storage](), {}, set()
    for step, action in enumerate(steps):
        if action == "put":
            value = row(step)
            number = bank.put(value)
            value += 1  # the bank's row is a copy
            assert number not in ever
            stored[number] = step
            ever.add(number)
        elif isinstance(action, int) and stored:
            number = list(stored)[action % len(stored)]
            assert torch.equal(bank.row(number), row(stored[number]))
        elif isinstance(action, list):
            stored = {n: v for k, (n, v) in enumerate(stored.items()) if k not in action}
            bank.retain(stored)
        if stored:
            index = torch.tensor([list(stored), list(stored)[::-1]])
            expected = torch.stack(
                [torch.stack([row(stored[n]) for n in numbers]) for numbers in index.tolist()]
            )
            assert torch.equal(bank[index], expected)


@pytest.mark.parametrize("storage", ["shared", "disk"])
@pytest.mark.parametrize("piece", [1, 4096, 2**30])
def test_a_file_grows_by_pieces_and_takes_new_rows_where_old_ones_were(storage, piece, monkeypatch):
    """Three rows of 64 bytes at a time, one where a piece has room for no more; each piece takes a
    page at least.
    """
    monkeypatch.setattr(row_bank, "PIECE", piece)
    bank = BANKS[storage]()
    piece_rows, page = (1, 4096) if piece == 1 else (3, 4096)
    numbers = [bank.put(row(k)) for k in range(7)]
    size = os.fstat(bank._file.fileno()).st_size
    assert size == -(-7 // piece_rows) * page
    assert bank.filed == (size if storage == "disk" else 0)
    for turn in range(10):
        bank.retain(numbers[2:])
        numbers[:2] = [bank.put(row(100 * turn + k)) for k in range(2)]
    assert os.fstat(bank._file.fileno()).st_size == size
    assert [float(bank.row(n)[0]) for n in numbers] == [900.0, 901.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def answer(bank, pipe):
    while (index := pipe.recv()) is not None:
        pipe.send(bank[index].clone())


def test_a_forked_process_sees_what_is_put_later():
    """Also where a row lies in the place of one that it has looked at."""
    bank = FileBank.in_memory(row(0), 2)
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(bank, child))
    process.start()
    try:
        old = [bank.put(row(k)) for k in range(5)]
        for numbers, values in ((old, [0, 1, 2, 3, 4]), (old[:1], [0])):
            parent.send(torch.tensor([numbers]))
            assert parent.recv()[0, :, 0].tolist() == values
        bank.retain(old[1:])
        new = bank.put(row(9))
        parent.send(torch.tensor([[new]]))
        assert parent.recv()[0, :, 0].tolist() == [9.0]
    finally:
        parent.send(None)
        process.join()


def test_a_bank_goes_to_a_forked_process_by_its_name():
    import pickle

    bank = FileBank.in_memory(row(0), 2)
    assert pickle.loads(pickle.dumps(bank)) is bank  # this process stands for one that inherited it


def test_a_row_that_stands_in_its_place_is_not_copied_again():
    fetched, work = [], WorkMatrix()

    def fetch(number):
        fetched.append(number)
        return row(number)

    for index, copied in (
        ([1, 2, 3], [1, 2, 3]),
        ([1, 5, 3], [5]),
        ([1, 5, 3], []),
        ([3, 5, 1], [3, 1]),
    ):
        fetched.clear()
        assert work.gather(torch.tensor([index]), fetch)[0, :, 0].tolist() == index
        assert fetched[-len(copied) :] == copied if copied else not fetched
    assert work.gather(torch.tensor([[1], [2]]), fetch).shape == (2, 1, D)


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch, tmp_path):
    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bank = FileBank.on_disk(torch.zeros(D), 3)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(row_bank, "reserve", disk_full)
    with pytest.raises(
        StorageError,
        match=rf"no room for 4096 bytes of clients' copies in {tmp_path} .*state_memory",
    ):
        bank.put(row(1))


def test_where_memory_has_no_files_they_lie_on_a_disk(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    bank = FileBank.in_memory(row(0), 1)
    assert torch.equal(bank.row(bank.put(row(3))), row(3))
    assert bank.filed > 0


def test_a_bank_leaves_no_open_file_behind():
    open_files = len(list(Path("/dev/fd").iterdir()))
    for storage in ("shared", "disk"):
        bank = BANKS[storage]()
        bank.put(row(1))
        del bank
    assert len(list(Path("/dev/fd").iterdir())) == open_files
