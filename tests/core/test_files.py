"""The only module that reads files: what it refuses, and that no other source opens files."""

import ast
import errno
import hashlib
import os
import socket
from pathlib import Path

import pytest

from pomona.core import files
from pomona.core.bounds import MOST_BYTES
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read

ROOT = Path(__file__).parents[2]
# Who opens a file for reading elsewhere, and why. Writers are not listed: see the modes below.
EXCEPTIONS = {
    ("pomona/core/files.py", "os.open"): "the door; a folder, to make its names durable",
    ("pomona/core/files.py", "os.fdopen"): "the door",
    ("pomona/core/toml.py", "tomllib.loads"): "parses a text that came through the door",
    ("pomona/results/web/report_page.py", "read_text"): "files of the installed package",
    ("pomona/cli/new.py", "read_text"): "files of the installed package",
    ("pomona_federation/supervision/fork.py", "os.open"): "/dev/null",
    ("pomona_federation/supervision/fork.py", "os.fdopen"): "a pipe of its own",
    ("pomona/data/cifar.py", "tarfile.open"): "given an open file",
    ("pomona/data/published.py", "np.loadtxt"): "a file of an installed package",
    ("pomona/data/formats/workbook_marks.py", "zipfile.ZipFile"): "given an open file",
    ("pomona/data/formats/pictures.py", "Image.open"): "given an open file",
    ("pomona/data/reader_process.py", "np.memmap"): "a scratch file of its own, without a name",
    ("pomona/data/reader_process.py", "os.fdopen"): "a scratch file of its own, without a name",
    ("pomona/data/reader_process.py", "open"): "what the system says of this process",
    (
        "pomona/storage/lock.py",
        "os.open",
    ): "a lock: opened for writing, no link followed, 500 bytes read",
    ("pomona/privacy/ledger.py", "os.open"): "appended to; no link followed",
    ("pomona/storage/row_bank.py", "os.fdopen"): "memory of its own",
    ("pomona/storage/mapped_array.py", "np.memmap"): "a scratch file of its own, without a name",
    (
        "pomona/record/run_folder.py",
        "open",
    ): "a run's own record, cut back to its last committed round and appended to",
    ("pomona_federation/provision/kit_files.py", "read_bytes"): "a file of the installed package",
    ("pomona_federation/installation/restore.py", "tarfile.open"): "given an open file",
    (
        "pomona_federation/rehearsal/run.py",
        "load_file",
    ): "models that the rehearsal itself has just written",
    (
        "pomona_federation/server/long_poll.py",
        "os.open",
    ): "a named pipe of the server's own, not a file",
    ("pomona_federation/audit_log.py", "os.open"): "appended to; no link followed",
    ("pomona_federation/silo/history.py", "os.open"): "appended to; no link followed",
    ("pomona_federation/silo/history.py", "os.fdopen"): "appended to",
}
LIBRARIES = {
    "tomllib.load", "tomllib.loads", "tomli.load", "np.load", "np.fromfile", "np.genfromtxt", "np.loadtxt", "np.memmap",
    "json.load", "pickle.load", "torch.load", "load_file", "safe_open", "tarfile.open", "zipfile.ZipFile", "gzip.open",
    "os.open", "os.fdopen", "io.open", "Image.open", "archive.open", "self.open",
}  # fmt: skip


NAMES = {name.rpartition(".")[2] for name in LIBRARIES} | {"read_text", "read_bytes"}


def reads(source: str) -> set[str]:
    """The calls in a module's source that may open a file for reading."""
    opened = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        last = getattr(node.func, "attr", getattr(node.func, "id", None))
        if last not in NAMES:
            continue
        name = ast.unparse(node.func)
        values = [*node.args, *(k.value for k in node.keywords)]
        texts = [a.value for a in values if isinstance(a, ast.Constant)]
        modes = [text for text in texts if isinstance(text, str)]
        writes = any(
            m in {"wb", "xb", "ab", "w", "x", "a"} for m in modes
        ) or "O_WRONLY" in ast.unparse(node)
        if last in {"read_text", "read_bytes"} and "." in name:
            opened.add(last)
        elif name in LIBRARIES and not writes:
            opened.add(name)
        elif last == "open" and not writes and (name == "open" or "/" in name or modes):
            # the builtin, or a path's; of other objects it is a constructor of that name
            opened.add("open")
    return opened


def test_the_source_opens_files_for_reading_through_the_door_alone():
    pairs = {
        (str(p.relative_to(source)), function)
        for source in (ROOT / "src", ROOT / "federation/src")
        for p in source.rglob("*.py")
        for function in reads(p.read_text("utf-8"))
    }
    assert pairs - EXCEPTIONS.keys() == set(), (
        "open these through pomona.core.files, or say here why not"
    )
    assert EXCEPTIONS.keys() - pairs == set(), "no longer there: take them off the list"


@pytest.mark.parametrize(
    "source",
    [
        "Path('x').read_text()",
        "p.read_bytes()",
        "open(name)",
        "(a / b).open('rb')",
        "np.load(p)",
        "p.open('r+b')",
    ],
)
def test_the_scan_sees_every_way_to_read(source):
    assert len(reads(source)) == 1
    assert reads("p.open('wb')") == reads("files.opened(p)") == set()


def open_now():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def irregular(tmp_path, monkeypatch):
    """Paths of things other than plain files of a sensible length."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "to-pipe").symlink_to("pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)
        bound.bind("socket")
        yield tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "it is a pipe, a socket or a device, not a file"),
        ("to-pipe", "it is a pipe, a socket or a device, not a file"),
        ("device", "it is a pipe, a socket or a device, not a file"),
        ("socket", "it is a pipe, a socket or a device, not a file"),
        ("folder", "it is a folder, not a file"),
        ("sparse", f"it has {MOST_BYTES + 1} bytes; the limit is {MOST_BYTES}"),
        ("none", "No such file or directory"),
        ("a\0b", "its name holds a NUL"),
    ],
)
def test_what_is_no_plain_file_of_a_bounded_length_is_refused_at_once(irregular, name, reason):
    handles = open_now()
    with pytest.raises(OSError, match=reason) as fault:
        files.content(irregular / name)
    assert fault.value.strerror == reason
    assert open_now() == handles
    if name != "sparse":
        with pytest.raises(ConfigError, match=reason):
            files.regular(irregular / name, ConfigError)


def test_the_folder_of_an_account_that_is_not_there_is_a_missing_one(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.expanded("~/rows.csv") == tmp_path / "rows.csv"
    with pytest.raises(DataError, match=r"~nobody-here/rows\.csv does not exist"):
        read(data_settings(name="table", path="~nobody-here/rows.csv", label_column="y"))


def test_a_link_is_followed_only_where_that_is_allowed(tmp_path):
    (tmp_path / "file").write_bytes(b"a\r\nb")
    (tmp_path / "link").symlink_to("file")
    assert files.content(tmp_path / "link") == b"a\r\nb"
    assert files.text(tmp_path / "link") == "a\nb"
    with pytest.raises(OSError, match="symbolic link"):
        files.content(tmp_path / "link", follow=False)
    assert files.content(tmp_path / "file", follow=False) == b"a\r\nb"


def test_a_file_has_at_most_its_length(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert files.content(tmp_path / "file", 3) == b"abc"
    with pytest.raises(OSError, match="it has 3 bytes; the limit is 2"):
        files.content(tmp_path / "file", 2)
    # The system does not say how long this one is: it is counted as it is read.
    with pytest.raises(OSError, match="it has more than 2 bytes; the limit is 2"):
        files.content(Path("/proc/self/status"), 2)


def test_blocks_and_hash_are_the_files(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(data)
    with files.opened(tmp_path / "file") as file:
        blocks = list(files.blocks(file))
    assert [len(p) for p in blocks] == [2**20, 256 * 5000 - 2**20]
    assert b"".join(blocks) == data
    assert files.sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_a_write_that_fails_names_its_file_and_leaves_none(tmp_path, monkeypatch):
    def full_disk(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left") as fault:
        files.publish(tmp_path / "new", [b"x"])
    assert Path(fault.value.filename).parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_read_is_refused_with_its_path_and_the_remedy(tmp_path):
    path = tmp_path / "absent"
    with (
        pytest.raises(ConfigError, match=rf"{path} cannot be read .*; fetch it"),
        files.reading(path, "fetch it", ConfigError),
    ):
        path.read_bytes()
