"""Committed rounds: reads return what was written, or nothing; no fault damages the previous
round.
"""

import errno
import hashlib
import itertools
import json
import os
import resource
import signal
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, load_file
from safetensors.torch import save as library_save

from pomona.core.errors import CheckpointError, StorageError
from pomona.core.files import UNFINISHED, probe, publish, publish_by_hash
from pomona.core.state import Lazy
from pomona.federation.checkpointing import require_same
from pomona.storage import checkpoint
from pomona.storage.checkpoint import committed, differing, in_files, newest, read, save, set_aside
from pomona.storage.equal_tensors import MIN_SHARED
from pomona.storage.safetensors_stream import DTYPES, digest, fill, layout, pieces

META = {"rounds": [1, 2], "identity": {"schema": 1}, "name": "ä"}


def example(number=0.0):
    base = torch.arange(6, dtype=torch.float32) + number
    return {
        "server.w": base.reshape(2, 3),
        "client.0.w": base[1:3],  # a view of the same memory
        "client.0.t": base.reshape(2, 3).T,  # not in memory order
        "client.1.b": torch.tensor([True, False, True]),
        "client.1.i": torch.tensor(-(2**40)),
        "client.1.d": torch.tensor([1e300, -0.0], dtype=torch.float64),
        "client.1.h": torch.tensor([1.5, float("inf")], dtype=torch.bfloat16),
        "client.2.e": torch.empty((0, 7)),
        "client.2.s": torch.empty((3, 0), dtype=torch.bool),
    }


def identical(a, b):
    return a.keys() == b.keys() and digest(a) == digest(b)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 3), max_size=3),
            st.integers(0, 255),
        ),
        max_size=5,
    )
)
def test_a_stream_reads_back_and_is_the_librarys_format(specifications):
    tensors = {
        name: (torch.arange(int(np.prod(shape))) + offset).reshape(shape).to(DTYPES[code])
        for name, (code, shape, offset) in specifications.items()
        if name != "__metadata__"
    }
    content = b"".join(pieces(tensors, "note"))
    assert identical(load(content), tensors)
    for data, expected_note in ((content, "note"), (library_save(tensors), "")):
        file = BytesIO(data)
        entries, note = layout(file, len(data), len(data))
        assert note == expected_note
        assert identical(fill(file, entries), tensors)


def test_every_tensor_begins_where_its_elements_may(tmp_path):
    with save(tmp_path, 1, example(), META).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(length))
    assert length % 8 == 0
    assert all(
        v["data_offsets"][0] % DTYPES[v["dtype"]].itemsize == 0
        for k, v in table.items()
        if k != "__metadata__"
    )


def test_a_checkpoint_holds_what_was_saved(tmp_path):
    path = save(tmp_path / "run" / "checkpoints", 7, example(), META)
    latest, corrupt = newest(path.parent)
    assert (latest.number, latest.meta, latest.path, corrupt) == (7, META, path, {})
    assert identical(latest.tensors, example())
    assert all(
        latest.tensors[k].dtype == v.dtype and latest.tensors[k].shape == v.shape
        for k, v in example().items()
    )
    assert hashlib.sha256(path.read_bytes()).hexdigest() in path.name
    assert identical(load_file(path), example())
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def shared(number=0.0):
    """A server's matrix, with rows that clients hold too, in other shapes, and near misses."""
    rows = torch.arange(3 * MIN_SHARED, dtype=torch.float32).reshape(3, -1) + number
    zeros = torch.zeros(MIN_SHARED)
    return {
        "server.cores": rows,
        "client.0.core": rows[:1].clone(),
        "client.1.core": rows[1].clone(),
        "client.2.core": rows[2].reshape(2, -1).clone(),
        "client.2.copy": rows.flatten().clone(),
        "client.2.flipped": rows[2].flip(0),  # of the same sum
        "client.2.tail": rows[2, 1:].clone(),  # not a whole row
        "client.2.integers": rows[2].view(torch.int32).clone(),  # the same bytes, another dtype
        "client.3.zeros": zeros,
        "client.3.negative": -zeros,
        "client.3.half": zeros.bfloat16(),
        "client.4.half": zeros.bfloat16(),
        "client.4.small": rows[0, :9].clone(),
        "client.5.small": rows[0, :9].clone(),
    }


REFERENCES = {
    "client.0.core": ["server.cores", 0, [1, MIN_SHARED]],
    "client.1.core": ["server.cores", MIN_SHARED, [MIN_SHARED]],
    "client.2.core": ["server.cores", 2 * MIN_SHARED, [2, MIN_SHARED // 2]],
    "client.2.copy": ["server.cores", 0, [3 * MIN_SHARED]],
    "client.4.half": ["client.3.half", 0, [MIN_SHARED]],
}


@pytest.mark.parametrize("lazy", [False, True])
def test_equal_bytes_are_stored_once(tmp_path, lazy):
    tensors = shared()
    shapes = {name: t.to("meta") for name, t in tensors.items()}
    path = save(tmp_path, 1, Lazy(shapes, tensors.get) if lazy else tensors, META)
    stored, loaded = load_file(path), read(path)
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["pomona"])["repeated"] == REFERENCES
    assert {*tensors} - {*stored} == {*REFERENCES}
    assert identical(loaded.tensors, tensors)
    assert identical(in_files(loaded, tmp_path).tensors, tensors)
    loaded.tensors["client.0.core"].zero_()
    assert identical(loaded.tensors, tensors)  # each read has memory of its own


def with_note(folder, note):
    """The file of a round with a tensor and a note, under the right hash."""
    return publish_by_hash(
        folder, pieces({"w": torch.arange(8.0)}, note), "round-000001-{}.safetensors".format
    )


def referring(references):
    """A note with these references."""
    return json.dumps({"round": 1, "meta": {}, "repeated": references})


def test_a_reference_is_read_from_the_tensor_that_has_its_numbers(tmp_path):
    loaded = read(with_note(tmp_path, referring({"v": ["w", 6, [2, 1]]})))
    assert loaded.tensors["v"].tolist() == [[6.0], [7.0]]


OUTSIDE = [
    *(["w", 0, [9]], ["w", 7, [2]], ["w", -1, [2]], ["w", 0, [-2]], ["w", 0, [-2, -4]]),
    *(["v", 0, [2]], ["u", 0, [2]], ["w", 0, [0, 2**62, 4]], ["w", 0, [2**70]]),
    *(["w", 0], 5, ["w", 0.0, [2]], ["w", True, [2]], ["w", 0, ""], ["w", 0, {}], [["w"], 0, [2]]),
]


@pytest.mark.parametrize(
    "note",
    [
        *(referring({"u": ["w", 0, [2]], "v": reference}) for reference in OUTSIDE),
        *map(referring, (None, [], {"w": ["w", 0, [2]]})),
        '{"round": 1, "meta": {}, "repeated": {"v": ["w", 0, [2]], "v": ["w", 4, [2]]}}',
        *("", "5", "[]", "null", '{"round": 1}', '{"round": 1, "meta": 5}'),
    ],
)
def test_a_note_that_no_save_writes_is_damage(tmp_path, note):
    with pytest.raises(CheckpointError, match="cannot be used"):
        read(with_note(tmp_path, note))


def test_the_same_round_has_the_same_bytes(tmp_path):
    path = save(tmp_path / "a", 3, example(), META)
    reordered = save(tmp_path / "b", 3, dict(reversed(example().items())), META)
    assert (path.name, path.read_bytes()) == (reordered.name, reordered.read_bytes())


def test_only_what_json_can_hold_is_meta(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path, 1, {}, {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_rounds_are_kept(tmp_path, count):
    for number in range(1, 6):
        save(tmp_path, number, example(number), {}, count)
        assert [n for n, _ in committed(tmp_path)] == list(
            range(max(1, number - count + 1), number + 1)
        )


def test_a_round_that_is_spared_outlives_the_others(tmp_path):
    """Round 1 while somebody may go on from it; the two newest beside it, as ever."""
    for number in range(1, 6):
        save(tmp_path, number, example(number), {}, keep_rounds=2, spare={1})
    assert [n for n, _ in committed(tmp_path)] == [1, 4, 5]
    save(tmp_path, 6, example(6), {}, keep_rounds=2, spare={5})
    assert [n for n, _ in committed(tmp_path)] == [5, 6]


def test_nothing_committed_is_no_fault(tmp_path):
    assert newest(tmp_path) == (None, {})
    assert newest(tmp_path / "absent") == (None, {})
    (tmp_path / UNFINISHED).write_bytes(b"half")
    assert newest(tmp_path) == (None, {})


# Damage


def damaged(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read(path)


def test_every_truncation_and_bit_flip_is_detected(tmp_path):
    path = save(tmp_path, 1, example(), META)
    content = path.read_bytes()
    for size in np.linspace(0, len(content) - 1, 64).astype(int):
        damaged(path, content[:size])
    header = 8 + int.from_bytes(content[:8], "little")
    bits = {*range(64), *np.linspace(64, 8 * header - 1, 96).astype(int)}
    bits |= {*np.linspace(8 * header, 8 * len(content) - 1, 256 - len(bits)).astype(int)}
    assert len(bits) == 256
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged(path, flipped)
    damaged(path, content + b"\0")
    path.write_bytes(content)
    assert read(path).number == 1


def test_swapped_and_renamed_files_are_detected(tmp_path):
    path_1, path_2 = save(tmp_path, 1, example(1), {}), save(tmp_path, 2, example(2), {})
    first, second = path_1.read_bytes(), path_2.read_bytes()
    damaged(path_1, second)
    damaged(path_2, first)
    later = path_2.with_name(path_2.name.replace("000002", "000009"))
    damaged(later, second)


def test_a_damaged_newest_is_named_and_the_one_before_it_used(tmp_path):
    old, new = save(tmp_path, 11, example(11), {}), save(tmp_path, 12, example(12), {})
    content = new.read_bytes()
    new.write_bytes(b"")
    usable, corrupt = newest(tmp_path)
    assert (usable.number, usable.path) == (11, old)
    assert list(corrupt) == [new]
    assert "checksum" in corrupt[new]
    set_aside(corrupt)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([old.name, new.name + ".corrupt"])
    assert newest(tmp_path)[1] == {}
    assert save(tmp_path, 12, example(12), {}).read_bytes() == content


def test_a_damaged_file_counts_for_nothing_when_its_round_is_committed_again(tmp_path):
    save(tmp_path, 11, example(11), {})
    save(tmp_path, 12, example(12), {"old": True}).write_bytes(b"")
    save(tmp_path, 12, example(12), {})
    assert [n for n, _ in committed(tmp_path)] == [11, 12]
    assert newest(tmp_path)[0].number == 12


def test_if_all_are_damaged_it_refuses_and_touches_nothing(tmp_path):
    files = [save(tmp_path, n, example(n), {}) for n in (1, 2)]
    for file in files:
        file.write_bytes(b"x")
    with pytest.raises(CheckpointError, match="all 2 checkpoints") as raised:
        newest(tmp_path)
    assert raised.value.code == 4
    assert [file.read_bytes() for file in files] == [b"x", b"x"]


def test_an_unreadable_disk_is_damage(tmp_path, monkeypatch):
    save(tmp_path, 1, example(), {})
    bad = save(tmp_path, 2, example(), {})
    real_open = os.open

    def faulty(path, *args, **kwargs):
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", faulty)
    usable, corrupt = newest(tmp_path)
    assert usable.number == 1
    assert "Input/output error" in corrupt[bad]


# Faults on the way


class Tripwire:
    """Lets this many steps of a save pass, and acts at the next one, before or after it."""

    def __init__(self, monkeypatch, passes, act, acts_after):
        self.left, self.act, self.acts_after, self.tripped = passes, act, acts_after, None
        for owner, name in (
            (Path, "open"),
            (Path, "mkdir"),
            (os, "open"),
            (os, "fsync"),
            (os, "replace"),
            (os, "unlink"),
        ):
            monkeypatch.setattr(owner, name, self.step(name, getattr(owner, name)))
        monkeypatch.setattr(checkpoint, "pieces", self.writing)

    def step(self, name, function):
        def wrapped(*args, **kwargs):
            if self.acts_after:
                result = function(*args, **kwargs)
                try:
                    self.count(name)
                except OSError:
                    result.close() if hasattr(result, "close") else name == "open" and os.close(
                        result
                    )
                    raise
                return result
            self.count(name)
            return function(*args, **kwargs)

        return wrapped

    def writing(self, tensors, note):
        for piece in pieces(tensors, note):
            yield piece
            self.count("write")

    def count(self, name):
        if self.left == 0 and not self.tripped:
            self.tripped = name
            self.act()
        self.left -= 1


def disk_full():
    raise OSError(errno.ENOSPC, "No space left on device")


def refusal(work):
    """The StorageError that ends the work, None if it succeeds."""
    try:
        work()
    except StorageError as fault:
        return fault


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work):
    """Run in a forked child; returns its exit code, or minus the signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as fault:
            os._exit(getattr(fault, "code", 1))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole_afterwards(folder):
    """The usable round; no other file in the folder is taken for a checkpoint."""
    usable, corrupt = newest(folder)
    assert corrupt == {}
    assert identical(usable.tensors, example(usable.number))
    return usable.number


@pytest.mark.parametrize("acts_after", [False, True])
def test_a_full_disk_at_any_step_leaves_a_round_and_no_litter(tmp_path, monkeypatch, acts_after):
    steps = []
    for passes in itertools.count():
        folder = tmp_path / str(passes)
        for number in (1, 2):
            save(folder, number, example(number), {})
        with monkeypatch.context() as patched:
            wire = Tripwire(patched, passes, disk_full, acts_after)
            fault = refusal(lambda folder=folder: save(folder, 3, example(3), {}))
        assert bool(fault) == bool(wire.tripped)
        if not fault:
            break
        assert fault.code == 6
        assert "No space left" in str(fault)
        assert "round 3" in str(fault)
        steps.append(wire.tripped)
        renamed = "replace" in steps[:-1] or (acts_after and steps[-1] == "replace")
        assert whole_afterwards(folder) == (3 if renamed else 2)
        save(folder, 3, example(3), {})
        assert [n for n, _ in committed(folder)] == [2, 3]
        assert len(list(folder.iterdir())) == 2
    writes = ["write"] * (1 + len(example()))
    # of what a kill left behind: there is nothing, so it is never done
    first = [] if acts_after else ["unlink"]
    assert steps == [*first, "open", *writes, "fsync", "replace", "open", "fsync", "unlink"]


@pytest.mark.long
@pytest.mark.parametrize("acts_after", [False, True])
def test_a_kill_at_any_step_leaves_a_round(tmp_path, monkeypatch, acts_after):
    for passes in itertools.count():
        folder = tmp_path / str(passes)
        for number in (1, 2):
            save(folder, number, example(number), {})

        def attempt(folder=folder, passes=passes):
            Tripwire(monkeypatch, passes, kill, acts_after)
            save(folder, 3, example(3), {})

        exit_code = in_child(attempt)
        assert whole_afterwards(folder) in ((2, 3) if exit_code else (3,))
        save(folder, 3, example(3), {})
        assert len(list(folder.iterdir())) == 2
        if exit_code == 0:
            break
        assert exit_code == -signal.SIGKILL
    assert passes == 6 + (not acts_after) + 1 + len(example())


def test_the_first_round_in_a_new_folder_survives_every_fault_as_no_round(tmp_path, monkeypatch):
    for passes in itertools.count():
        folder = tmp_path / str(passes) / "checkpoints"
        with monkeypatch.context() as patched:
            wire = Tripwire(patched, passes, disk_full, False)
            fault = refusal(lambda folder=folder: save(folder, 1, example(1), {}))
        assert bool(fault) == bool(wire.tripped)
        assert not fault or ("no round is kept" in str(fault)) == (newest(folder)[0] is None)
        if not wire.tripped:
            break
        save(folder, 1, example(1), {})
        assert whole_afterwards(folder) == 1
    assert passes > 10


def test_a_limit_of_the_operating_system_is_a_storage_error(tmp_path):
    """No fault simulated here: the kernel refuses the write."""
    save(tmp_path, 1, example(1), {})

    def attempt():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        save(tmp_path, 2, {"w": torch.ones(100_000)}, {})

    assert in_child(attempt) == 6
    assert whole_afterwards(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_while_writing_leaves_no_litter(tmp_path):
    def interrupted():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "file", interrupted())
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_nothing_and_tells_what_is_wrong(tmp_path):
    probe(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="exists"):
        probe(tmp_path / "file")


# Compatibility and digests


def test_differing_keys_are_dotted():
    stored = {
        "lr": 0.1,
        "method": {"name": "apple", "mu": 0.0},
        "clients": [1, 2],
        "gone": None,
        "deep": {"x": {"y": 1}},
    }
    current = {
        "lr": 0.2,
        "method": {"name": "apple", "mu": 0.5},
        "clients": (1, 2),
        "deep": {"x": {"y": 1, "z": None}},
    }
    assert differing(stored, current) == ["deep.x.z", "gone", "lr", "method.mu"]
    assert differing(current, stored) == differing(stored, current)
    assert differing(stored, stored) == []
    assert differing({"a": {"b": 1}}, {"a": 1}) == ["a"]


def test_another_run_is_refused_with_the_keys(tmp_path):
    save(tmp_path, 1, {}, {"identity": {"lr": 0.1, "schema": 1}})
    latest, _ = newest(tmp_path)
    require_same(tmp_path, latest.meta["identity"], {"lr": 0.1, "schema": 1})
    with pytest.raises(CheckpointError, match="different values of lr, schema;"):
        require_same(tmp_path, latest.meta["identity"], {"lr": 0.2, "schema": 2})


def test_the_digest_is_what_it_says():
    tensors = {"b": torch.tensor([True]), "a": torch.tensor([[1.0, 2.0]])}
    spelled = (
        b'["a", "F32", [1, 2]]\n'
        + np.array([1, 2], "<f4").tobytes()
        + b'["b", "BOOL", [1]]\n'
        + b"\1"
    )
    assert digest(tensors) == hashlib.sha256(spelled).hexdigest()
    assert digest(tensors) == digest(dict(reversed(tensors.items())))
    cases = [
        {},
        {"a": tensors["a"]},
        tensors | {"a": tensors["a"].T},
        tensors | {"a": tensors["a"].int()},
    ]
    cases += [tensors | {"a": torch.tensor([[1.0, -2.0]])}, {"c": tensors["b"], "a": tensors["a"]}]
    assert len({digest(t) for t in [tensors, *cases]}) == 1 + len(cases)
