"""Benches from others: whatever results.json contains, the outcome is a page or one line."""

import copy
import json
import os
import shutil

import pytest

from pomona.core.errors import StorageError
from pomona.core.rng import stream
from pomona.experiments import load
from pomona.results.web.comparison_page import write

pytestmark = pytest.mark.long

WRONG_VALUES = [None, True, -1, 10**400, 1e308, "x", "[/red]\x1b]0;x\x07", [], {}, [[1]], [None]]
WRONG_VALUES += [{"a": [1]}]
DAMAGES = 80


def tree_paths(tree, path=()):
    """One path of every kind in a tree; paths that differ only in list positions count once."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else list(enumerate(tree))[:1]
        if isinstance(tree, list)
        else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from tree_paths(value, (*path, key))


def put(tree, path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


@pytest.fixture
def bench_folder(tiny, tmp_path):
    folder = tmp_path / "sent"
    folder.mkdir()
    for name in ("results.json", "timing.json"):
        shutil.copy(tiny.folder / name, folder)
    return folder


def outcome(folder):
    """The page, or the line that explains its absence."""
    try:
        return write(load(folder), folder).read_text()
    except StorageError as fault:
        return str(fault)


def test_what_a_bench_wrote_is_read_as_it_was(tiny, bench_folder):
    assert load(bench_folder).results == tiny.results
    assert load(bench_folder).timing == tiny.timing


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x", "..", "a\0b", "<b>"])
@pytest.mark.parametrize("key", ["scenario", "folder"])
def test_a_name_in_results_is_no_path(key, name, tiny, bench_folder):
    results = copy.deepcopy(tiny.results)
    row = results["results"][0]
    (row if key == "scenario" else row["cells"][0])[key] = name
    (bench_folder / "results.json").write_text(json.dumps(results))
    # a folder's name within the bench's: odd, and nothing else
    if key == "folder" and name == "<b>":
        load(bench_folder)
    else:
        with pytest.raises(StorageError, match="holds no readable bench"):
            load(bench_folder)


def test_damaged_results_are_a_page_or_one_line(tiny, bench_folder, monkeypatch):
    """Tables only: what is drawn is made of the same numbers."""
    monkeypatch.setattr("pomona.results.web.comparison_page._pictures", lambda *_: [])
    draw, refused = stream(0, "damage"), 0
    paths = list(tree_paths(tiny.results))
    for _ in range(DAMAGES):
        results = copy.deepcopy(tiny.results)
        put(results, *(choices[draw.integers(len(choices))] for choices in (paths, WRONG_VALUES)))
        (bench_folder / "results.json").write_text(json.dumps(results))
        message = outcome(bench_folder)
        refused += "holds no readable bench" in message
        assert "\x1b" not in message
    assert DAMAGES > refused > DAMAGES / 3


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 1}', "[" * 200_000, '{"schema": "\\u001b]0;x"}', "\xff"]
)
@pytest.mark.parametrize("name", ["results.json", "timing.json"])
def test_what_is_no_bench_is_refused(name, text, bench_folder):
    (bench_folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageError, match="holds no readable bench") as fault:
        load(bench_folder)
    assert "\x1b" not in str(fault.value)


def test_a_pipe_is_not_waited_for(bench_folder):
    (bench_folder / "results.json").unlink()
    os.mkfifo(bench_folder / "results.json")
    with pytest.raises(StorageError, match="not a file"):
        load(bench_folder)
