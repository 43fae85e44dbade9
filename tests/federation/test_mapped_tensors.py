"""Rows in scratch files: the same numbers as in memory, no file names, no memory left in use,
one-line disk errors.
"""

import errno
import os
from math import hypot
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pomona.core.errors import StorageError
from pomona.core.round import Roster, Round
from pomona.core.training_settings import Optimizer
from pomona.federation import norm_bounds
from pomona.federation.exchange import ClientRequest, Reply, UplinkSpool, stack
from pomona.methods import base
from pomona.storage import checkpoint, mapped_tensor
from pomona.storage.mapped_tensor import folder_of, let_go, mapped, stacked
from pomona.storage.tensor_validation import non_finite

WIDE = 1003


@pytest.fixture(autouse=True)
def narrow_slices(monkeypatch):
    monkeypatch.setattr(mapped_tensor, "SLICE", 100)


def rows(n, width=WIDE):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n))


def in_file(tensor, folder):
    return mapped(tensor.shape, tensor.dtype, folder).copy_(tensor)


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def test_a_file_has_no_name_and_its_pages_go_while_its_numbers_stay(tmp_path):
    size = 2**22
    tensor = mapped((4, size), torch.float32, tmp_path)
    assert not tensor.any(), "zeros"
    let_go(tensor)
    initial = resident("RssFile")
    for k, row in enumerate(tensor):
        row.fill_(k)
        let_go(row)
    assert resident("RssFile") - initial < 4 * size, "one row of four"
    assert tensor.sum(1).tolist() == [k * size for k in range(4)]
    assert folder_of(tensor) == folder_of(tensor[2]) == tmp_path
    assert folder_of(torch.zeros(3)) is None
    assert list(tmp_path.iterdir()) == []
    assert mapped((0, 3), torch.int64, tmp_path).shape == (0, 3)


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def disk_full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", disk_full)
    with pytest.raises(
        StorageError,
        match=r"^no room for 4\.0 MB of models in .* \(No space left on device\); make",
    ):
        mapped((10**6,), torch.float32, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [1, 99, 100, 101, WIDE])
def test_sums_are_the_same_in_files_in_memory_and_in_one_piece(width, tmp_path):
    W, p = rows(5, width), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    formula = W[0] + p.float() @ (W - W[0])
    assert torch.equal(base.weighted_mean(W, p), base.weighted_mean(in_file(W, tmp_path), p))
    assert torch.allclose(base.weighted_mean(W, p), formula, rtol=0, atol=1e-6)
    equal = W[:1].repeat(5, 1)
    assert torch.equal(base.weighted_mean(equal, p), W[0])
    if width <= 100:
        assert torch.equal(base.weighted_mean(W, p), formula), "one slice: the formula as it stands"
    roster = Roster((3, 0, 5, 2, 0))
    members = base.weighted_mean(W[[0, 2, 3]], torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64))
    assert torch.equal(base.members_mean(in_file(W, tmp_path), roster), members)


@pytest.mark.parametrize("ids", [(0, 1, 2), (0, 2), (2,)], ids=str)
@pytest.mark.parametrize("on_disk", ["bank", "rows", "both"])
def test_a_bank_from_a_file_is_a_new_one_in_the_same_folder(on_disk, ids, tmp_path):
    W, new = rows(4), rows(3)[: len(ids)]
    expected = W.clone()
    expected[list(ids)] = new
    bank = in_file(W, tmp_path) if on_disk != "rows" else W
    placed = base.replace_rows(bank, ids, in_file(new, tmp_path) if on_disk != "bank" else new)
    assert torch.equal(placed, expected)
    assert torch.equal(bank, W), "the old one stands"
    assert folder_of(placed) == tmp_path
    assert torch.equal(
        base.replace_rows(bank, ids, new[0]),
        W.index_copy(0, torch.tensor(ids), new[:1].repeat(len(ids), 1)),
    )


def test_rows_in_order_in_one_file_are_not_copied(tmp_path):
    W, V = in_file(rows(5), tmp_path), rows(5)
    assert stacked([W[1], W[2], W[3]]).data_ptr() == W[1].data_ptr()
    for order in ([1, 2, 3], [0, 2, 3], [3, 2], [4], [0, 0]):
        result = stacked([W[k] for k in order])
        assert torch.equal(result, V[order])
        assert folder_of(result) == tmp_path


def test_uplinks_lie_in_files_and_are_stacked_as_they_were(tmp_path):
    expects = {
        "model": torch.empty(WIDE, device="meta"),
        "request": torch.empty(2, dtype=torch.long, device="meta"),
    }
    roster = Roster((1,) * 9)
    round_ = Round(1, 1, 0.1, 0.1, 1.0, 1, 1, 0.0, 0.0, 0, Optimizer())
    request = ClientRequest(round_, roster, (3, 5, 8), expects=expects)
    uplinks = {i: {"model": rows(i)[0], "request": torch.tensor([i, 0])} for i in (8, 3, 5)}
    spool = UplinkSpool.allocate(request, tmp_path)
    replies = {i: spool.store(Reply(i, uplink, loss=0.5)) for i, uplink in uplinks.items()}
    assert {r.loss for r in replies.values()} == {0.5}
    assert spool.store(Reply(5, fault="diverged")).uplink == {}
    for ids in [(3, 5, 8), (3, 8)]:
        uplink = stack([replies[i] for i in ids], lambda reply: reply.uplink)
        for name in expects:
            assert torch.equal(uplink[name], torch.stack([uplinks[i][name] for i in ids]))
            assert folder_of(uplink[name]) == tmp_path


def test_admission_reads_in_slices(tmp_path):
    row = rows(1)[0].clone()
    norms = [
        float(torch.linalg.vector_norm(row[i : i + 100], dtype=torch.float64))
        for i in range(0, WIDE, 100)
    ]
    assert (
        norm_bounds.norms({"w": in_file(row, tmp_path)})
        == norm_bounds.norms({"w": row})
        == {"w": hypot(*norms)}
    )
    prefix = row[:100]
    assert norm_bounds.norms({"w": prefix}) == {
        "w": float(torch.linalg.vector_norm(prefix, dtype=torch.float64))
    }
    assert non_finite({"w": in_file(row, tmp_path)}) is None
    row[[7, 512, -1]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert "(3 of 1003)" in str(non_finite({"w": in_file(row, tmp_path)}))


def test_a_round_is_read_into_files_and_written_from_them(tmp_path):
    scratch = tmp_path / "scratch"
    tensors = {"server.cores": rows(4), "server.requests": torch.arange(8).view(4, 2)}
    scratch.mkdir()
    path = checkpoint.save(tmp_path / "memory", 1, tensors, {})
    loaded = checkpoint.in_files(checkpoint.read(path), scratch)
    for name, tensor in tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert folder_of(loaded.tensors[name]) == scratch
    rewritten = checkpoint.save(
        tmp_path / "files", 1, {name: loaded.tensors[name] for name in tensors}, {}
    )
    assert rewritten.read_bytes() == path.read_bytes()
    assert rewritten.name == path.name, "the same hash"


def test_a_file_that_pytorch_cannot_open_is_no_traceback(tmp_path, monkeypatch):
    fault = RuntimeError("unable to open file: Input/output error (5)")
    monkeypatch.setattr(torch, "from_file", Mock(side_effect=fault))
    with pytest.raises(StorageError, match="Input/output error"):
        mapped((2, 3), torch.float32, tmp_path)
