"""The refactoring check detects a changed number in every kind of file, and ignores seconds, times
and paths.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import same_results
import small_runs

TOOL = Path(same_results.__file__)


def recorded(folder, value=0.5, seconds=1.0):
    """A run's folder with one number in every kind of file; seconds and values derived from them
    are separate.
    """
    (folder / "checkpoints").mkdir(parents=True)
    lines = [
        {"event": "start", "time": seconds},
        {"event": "round", "seconds": seconds, "loss": [1.0, value]},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(
        json.dumps({"value": value, "seconds": seconds, "page": f"{folder}/page"})
    )
    (folder / "config.toml").write_text(f"lr = {value}\n")
    with (folder / "rounds.csv").open("w") as file:
        csv.writer(file).writerows([["round", "value", "seconds"], [1, value, seconds]])
    array = np.array([1.0, value], np.float32)
    np.savez(folder / "predictions.npz", outputs=array)
    note = {
        "pomona": json.dumps(
            {"events": {"bytes": int(seconds), "sha256": str(seconds)}, "norm": value}
        )
    }
    hashed = f"{int(seconds):064x}"
    save_file({"w": array}, folder / "checkpoints" / f"round-000001-{hashed}.safetensors", note)
    return folder


FILES = (
    "events.jsonl",
    "summary.json",
    "config.toml",
    "rounds.csv",
    "predictions.npz",
    "checkpoints",
)


def test_seconds_and_places_are_ignored(tmp_path):
    first, second = (
        same_results.outcome(recorded(tmp_path / name, seconds=seconds))
        for name, seconds in (("a", 1.0), ("b", 222.0))
    )
    assert same_results.difference(first, second) == ""
    assert same_results.digest(first) == same_results.digest(second)
    assert all(any(location.startswith(file) for location in first) for file in FILES)


@pytest.mark.parametrize("file", FILES)
def test_the_last_bit_of_a_number_is_found_in_every_kind_of_file(file, tmp_path):
    folders = [
        recorded(tmp_path / "a"),
        recorded(tmp_path / "b", value=float(np.nextafter(np.float32(0.5), 1))),
    ]
    first, second = (
        {
            location: value
            for location, value in same_results.outcome(folder).items()
            if location.startswith(file)
        }
        for folder in folders
    )
    assert same_results.difference(first, second)
    assert same_results.digest(first) != same_results.digest(second)


def test_a_file_more_or_less_is_found(tmp_path):
    first, second = (same_results.outcome(recorded(tmp_path / name)) for name in "ab")
    (tmp_path / "b" / "page.html").write_text("")
    extended = same_results.outcome(tmp_path / "b")
    assert same_results.difference(first, second) == ""
    assert "page.html: not there -> a file" in same_results.difference(second, extended)


def test_the_dtype_and_the_shape_of_a_tensor_count(tmp_path):
    w = np.zeros(4, np.float32)
    distinct = set()
    for number, array in enumerate((w, w.view(np.int32), w.reshape(2, 2))):
        save_file({"w": array}, tmp_path / f"{number}.safetensors")
        distinct.add(
            tuple(same_results.tensors((tmp_path / f"{number}.safetensors").read_bytes(), "m"))
        )
    assert len(distinct) == 3


def test_names_are_unique():
    names = [run.name for run in small_runs.runs(["a", "b"])]
    assert len(set(names)) == len(names)


def test_a_variants_settings_win():
    """Of two words for one setting the later one counts, so that a variant's must stand last."""
    commands = {run.name: run.commands[0] for run in small_runs.runs([])}
    for name, options in small_runs.VARIANTS.items():
        assert commands[name].endswith(options)


def guard(*arguments):
    return subprocess.run(
        [sys.executable, TOOL, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_this_tree_has_the_numbers_of_this_tree_and_other_ones_are_told(tmp_path):
    hashes = tmp_path / "hashes"
    first = guard("--only", "method-fedavg-ft", "resume-apple", "--hashes", hashes)
    assert first.returncode == 0, first.stdout + first.stderr
    repeated = guard(hashes, "--only", "method-fedavg-ft", "resume-apple")
    assert repeated.returncode == 0, repeated.stdout
    assert "2 of 2 runs the same" in repeated.stdout
    lines = hashes.read_text().splitlines()
    hashes.write_text(f"{'0' * 64}{lines[0][64:]}\n{lines[1]}\n")
    changed = guard(hashes, "--only", "method-fedavg-ft", "resume-apple")
    assert changed.returncode == 1
    assert "1 of 2 runs the same, 1 differ" in changed.stdout
