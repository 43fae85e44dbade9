"""Clients' states in files: bit-identical numbers, and memory for one client's state instead of
all.
"""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.errors import CheckpointError, ConfigError, StorageError
from pomona.core.state import flatten, merged, meta_tensor, meta_tensors, only
from pomona.federation import client_states as state
from pomona.federation.callbacks import StopAfter
from pomona.federation.client_states import choose, file_bytes, in_memory, to_file, unchanged
from pomona.methods.mixtures.apple import APPLEState
from pomona.storage.checkpoint import newest, read, save
from pomona.storage.safetensors_stream import DTYPES
from problems import Notes, digest_of_models, tiny
from representatives import representatives

pytestmark = pytest.mark.long

TINY = 1e-15  # of a machine's memory: less than a byte
BUDGET = {"budget": 1}
PARAMETERS = 64 * 8 + 8 + 8 * 10 + 10  # of ``tiny``'s network


def apple(**settings):
    return tiny("apple", BUDGET, **settings)


def padded(size):
    """The next multiple of 64."""
    return size + -size % 64


# One state


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        min_size=4,
        max_size=4,
    )
)
def test_a_state_in_a_file_is_the_same_state(shapes):
    tensors = [
        (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape).to(DTYPES[code])
        for code, shape in shapes
    ]
    in_file = to_file(APPLEState(*tensors))
    for tensor, t in zip(tensors, flatten(in_file, "s").values(), strict=True):
        assert (t.dtype, t.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(t, tensor)
        assert t.data_ptr() % 64 == 0 or not t.numel()
    assert file_bytes(in_file) == sum(padded(t.nbytes) for t in tensors)


def test_a_file_has_no_name_takes_no_descriptor_and_is_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, open_files = torch.arange(5.0), len(list(Path("/dev/fd").iterdir()))
    states = [to_file(first) for _ in range(20)]
    assert len(list(Path("/dev/fd").iterdir())) == open_files
    assert list(tmp_path.iterdir()) == []
    states[0] += 1
    assert (float(first[0]), float(states[0][0]), float(states[1][0])) == (0.0, 1.0, 0.0)
    assert in_memory(first) is first
    copy = in_memory(states[0])
    assert file_bytes(copy) == 0 < file_bytes(states[0])
    assert torch.equal(copy, states[0])
    assert to_file(None) is None
    assert file_bytes(None) == 0


def test_a_full_disk_is_said(monkeypatch):
    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", disk_full)
    with pytest.raises(
        StorageError,
        match=r"no room for 64 bytes of clients' states .* TMPDIR .* raise state_memory",
    ):
        to_file(torch.zeros(3))


# Tensors that are fetched one at a time


def test_lazy_tensors_are_fetched_only_when_asked_for(tmp_path):
    tensors = {
        "server.w": torch.arange(6.0).reshape(2, 3),
        "client.1.w": torch.ones(4),
        "client.2.b": torch.zeros(1),
    }
    lazy = read(
        save(tmp_path, 1, merged(tensors, only({"x": torch.ones(1)}, lambda name: name == "y")), {})
    ).tensors
    assert {n: (t.device.type, t.shape) for n, t in meta_tensors(lazy).items()} == {
        n: ("meta", t.shape) for n, t in tensors.items()
    }
    (saved,) = tmp_path.iterdir()
    clients = only(lazy, lambda name: name.startswith("client"))
    union = merged({"own": torch.zeros(2)}, clients)
    assert sorted(union) == ["client.1.w", "client.2.b", "own"]
    assert torch.equal(union["client.1.w"], torch.ones(4))
    assert len(union) == 3
    for name in ("server.w", "absent"):
        with pytest.raises(KeyError):
            clients[name]
    saved.unlink()
    assert meta_tensor(union["own"]).shape == meta_tensors(union)["own"].shape  # needs no file
    with pytest.raises(CheckpointError, match="cannot be used"):
        union["client.1.w"]


# Where they are kept


def planned(
    monkeypatch, memory, free, folder=None, clients=100, workers=2, copies=0, nodes=(), **settings
):
    """Placement of 100 clients, each with a state of 100 models of 582,026 parameters, on a machine
    of this size.
    """
    monkeypatch.setattr(state, "machine_memory", lambda: int(memory))
    monkeypatch.setattr(state.shutil, "disk_usage", lambda _: SimpleNamespace(free=int(free)))
    first = torch.empty(1, clients, 582_026, device="meta")
    return choose(apple(clients=clients, **settings), first, copies, workers, folder, nodes)


STATE_BYTES = 100 * 100 * 582_026 * 4  # 23.3 GB


def test_the_limit_is_a_share_of_the_machines_memory(monkeypatch):
    assert planned(monkeypatch, 2 * STATE_BYTES, 0) == (unchanged, [])
    assert planned(monkeypatch, STATE_BYTES, 0, state_memory=1.0) == (unchanged, [])
    storage, notes = planned(monkeypatch, 2 * STATE_BYTES - 2, 2 * STATE_BYTES)
    assert storage is to_file
    note = (
        "the clients' states take 23.3 GB, more than 0.5 of this machine's 46.6 GB: they are "
        "in files in "
    )
    assert notes == [note + tempfile.gettempdir()]


def test_files_that_have_no_room_are_refused(monkeypatch, tmp_path):
    """The states before and after a round, and three checkpoints: two that stay and the next
    one.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_folder = tmp_path / "new" / "run"
    for folder, times in ((None, 2), (run_folder, 5)):
        assert planned(monkeypatch, 24e9, times * STATE_BYTES, folder)[0] is to_file
        with pytest.raises(
            ConfigError,
            match=rf"{times * STATE_BYTES / 1e9:.1f} GB in .*free; .*TMPDIR.*raise state_memory",
        ):
            planned(monkeypatch, 24e9, times * STATE_BYTES - 1, folder)
    assert not run_folder.parent.exists()
    for number, times in ((1, 4), (2, 3), (3, 3)):
        save(run_folder / "checkpoints", number, {}, {})
        assert planned(monkeypatch, 24e9, times * STATE_BYTES, run_folder)[0] is to_file
        with pytest.raises(
            ConfigError, match=r"23\.3 GB, this machine has 20\.0 GB, and files need"
        ) as raised:
            planned(monkeypatch, 20e9, times * STATE_BYTES - 1, run_folder)
        assert "state_memory" not in str(raised.value)  # it would not help


def test_disks_of_their_own_have_room_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(state, "_disk", lambda demand: str(demand[0]))
    assert planned(monkeypatch, 24e9, 3 * STATE_BYTES, tmp_path)[0] is to_file
    with pytest.raises(ConfigError, match=f"69.8 GB in {tmp_path}, where 69.8 GB are free;"):
        planned(monkeypatch, 24e9, 3 * STATE_BYTES - 1, tmp_path)


def test_of_a_cluster_its_nodes_memory_counts(monkeypatch):
    """And the disks of this machine hold no states of it."""
    monkeypatch.setattr(state, "machine_memory", lambda: 1)
    assert planned(monkeypatch, 1, 0, nodes=[STATE_BYTES, STATE_BYTES]) == (unchanged, [])
    storage, notes = planned(monkeypatch, 1, 0, nodes=[STATE_BYTES, STATE_BYTES - 2])
    assert storage is to_file
    note = (
        "more than 0.5 of the cluster's 46.6 GB: they are in files in its nodes' temporary folders"
    )
    assert notes == [f"the clients' states take 23.3 GB, {note}"]


def test_what_is_in_use_at_a_time_must_fit_into_memory(monkeypatch):
    """Two workers that train 20 clients a call hold 40 states of 233 MB."""
    assert planned(monkeypatch, 40 * STATE_BYTES / 100, 1e15, rows_per_call=20)[0] is to_file
    with pytest.raises(ConfigError, match=r"training takes 9\.3 GB at a time; lower workers"):
        planned(monkeypatch, 40 * STATE_BYTES / 100 - 1, 1e15, rows_per_call=20)


def test_copies_count_by_what_a_round_can_bring(monkeypatch, tmp_path):
    """Of 100 clients that keep 100 models: those of the start and of each round, and never more
    than 100 x 100 in all.

    There is one set of them, before a round and after it; a client that trains has all of its own
    in memory.
    """
    model = 582_026 * 4
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for rounds, rows in ((1, 2), (20, 21), (99, 100), (1000, 100)):
        settings = {"clients": 100, "copies": 100 * model, "rounds": rounds}
        memory = 100 * rows * model + STATE_BYTES
        assert planned(monkeypatch, 2 * memory, 0, **settings) == (unchanged, [])
        assert planned(monkeypatch, 2 * memory - 2, memory + STATE_BYTES, **settings)[0] is to_file
        with pytest.raises(ConfigError, match=f"{(memory + STATE_BYTES) / 1e9:.1f} GB in "):
            planned(monkeypatch, 2 * memory - 2, memory + STATE_BYTES - 1, **settings)
    in_use = 2 * (100 * model + STATE_BYTES // 100)
    assert planned(monkeypatch, in_use, 1e15, **settings)[0] is to_file
    with pytest.raises(ConfigError, match=r"training takes 0\.9 GB at a time"):
        planned(monkeypatch, in_use - 1, 1e15, **settings)


def test_a_gpus_states_are_not_moved_to_files(monkeypatch):
    assert planned(monkeypatch, STATE_BYTES, 1e15, device="cuda") == (unchanged, [])
    with pytest.raises(
        ConfigError, match=r"23\.3 GB, this machine has 23\.3 GB; take fewer clients"
    ):
        planned(monkeypatch, STATE_BYTES - 1, 1e15, device="cuda")


def test_a_run_without_room_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(state.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    for folder in (None, tmp_path / "run"):
        with pytest.raises(ConfigError, match="4 clients of apple keep takes"):
            pomona.run(apple(state_memory=TINY), folder)
    assert list(tmp_path.iterdir()) == []


# Runs


@pytest.mark.parametrize(
    ("name", "overrides"),
    representatives(
        [
            ("apple", {}),
            ("apple", {"workers": 2}),
            ("apple", {"rows_per_call": 2, "workers": 2, "participation": 0.75}),
            ("ditto", {"workers": 2}),
            ("fedala", {"rows_per_call": 2}),
            ("fedavg", {}),
        ],
        [("apple", {"rows_per_call": 2, "workers": 2, "participation": 0.75}), ("fedavg", {})],
    ),
)
def test_a_run_with_states_in_files_is_the_same_run(name, overrides, tmp_path):
    listener, results = Notes(), []
    settings = BUDGET if name == "apple" else {}
    for share, folder in ((0.5, tmp_path / "memory"), (TINY, tmp_path / "files")):
        results.append(
            pomona.run(tiny(name, settings, state_memory=share, **overrides), folder, listener)
        )
    memory, files = results
    assert digest_of_models(tmp_path / "files") == digest_of_models(tmp_path / "memory")
    assert files.evaluations == memory.evaluations
    assert files.final == memory.final
    for a, b in zip(files.rounds, memory.rounds, strict=True):
        assert (a.cohort, a.loss, a.bytes_up, a.bytes_down) == (
            b.cohort,
            b.loss,
            b.bytes_up,
            b.bytes_down,
        )
        assert {k: v.tolist() for k, v in a.info.items()} == {
            k: v.tolist() for k, v in b.info.items()
        }
    last = [
        newest(folder / "checkpoints")[0].tensors
        for folder in (tmp_path / "files", tmp_path / "memory")
    ]
    assert last[0].keys() == last[1].keys()
    assert all(torch.equal(last[0][path], last[1][path]) for path in last[0])
    assert memory.summary["state_files_bytes"] == 0
    # a client's core, its DR row, and what was fetched; all copies by four rows at a time
    if name == "apple":
        states = 4 * (padded(4 * PARAMETERS) + padded(4 * 4) + padded(4))
        pieces, remainder = divmod(
            files.summary["state_files_bytes"] - states,
            -(-4 * padded(4 * PARAMETERS) // 4096) * 4096,
        )
        assert remainder == 0  # sending them to a checkpoint has not changed it
        assert 1 <= pieces <= 4  # at most 4 x 4 rows
    file_notes = [note for note in listener.said if "they are in files" in note]
    assert len(file_notes) == (name != "fedavg")  # whose clients keep nothing


@pytest.mark.parametrize(
    ("first", "second", "workers"), [(TINY, TINY, 2), (TINY, 0.5, 1), (0.5, TINY, 1)]
)
def test_a_run_goes_on_wherever_its_states_were(first, second, workers, tmp_path, monkeypatch):
    keys = {"clients": 5, "rounds": 4, "partition": {"name": "iid"}, "workers": workers}
    keys["membership"] = {"joins": {"3": 2}, "leaves": {"0": 2}, "unseen": [1], "adapt_rounds": 1}
    uninterrupted = pomona.run(apple(**keys), tmp_path / "whole")
    for number in (2, 4):
        stop = StopAfter(number, committed=False)
        with pytest.raises(KeyboardInterrupt):
            pomona.run(apple(state_memory=first, **keys), tmp_path / "parts", stop, resume=True)
    resumed = pomona.run(apple(state_memory=second, **keys), tmp_path / "parts", resume=True)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert resumed.evaluations == uninterrupted.evaluations
    assert resumed.unseen == uninterrupted.unseen
    assert (resumed.summary["state_files_bytes"] > 0) == (second == TINY)
