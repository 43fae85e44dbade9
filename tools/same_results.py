"""Show that a code change changes no number: small runs with two trees, and a comparison of their
output.

    python tools/same_results.py BASE [--out DIR] [--only NAME ...] [--hashes FILE]

BASE is a git revision, or a file written by ``--hashes``. Both trees are used only through their
command line (``small_runs.py``), so that modules may be renamed freely. Tensors, events, tables and
settings are compared to the last bit; seconds, times, versions, paths, process ids and hashes of
files that contain these are not, nor are pictures and pages. Equal numbers can be expected only on
one machine with one set of libraries.

Exit code 0: all the same; 1: something differs; 2: the runs themselves fail.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from small_runs import METHODS, Run, runs

ROOT = Path(__file__).resolve().parents[1]
TREES = ("src", "federation/src")
LANES = 2
LIMIT = 900  # seconds for one command
FAILED = "failed"
VOLATILE = frozenset(
    (
        "seconds",
        "simulated_seconds",
        "started",
        "time",
        "since",
        "versions",
        "pid",
        "host",
        "memory",
        "folder",
    )
) | {"busy_share", "sha256", "bytes", "presentation"}
# "sha256" and "bytes" of files with times in them: how a checkpoint marks the events; and words
"""Keys and columns whose values differ from one execution to the next, and words for people."""
# nothing but times, and hashes of files that are compared
PASSED_OVER = frozenset(("status.json", "timing.json"))
HASH = re.compile(r"-[0-9a-f]{64}(?=\.safetensors$)")  # of a checkpoint, which holds times

Outcome = dict[str, str]
"""What a run wrote: texts of numbers, and hashes of arrays, by where they stand."""


def leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """All non-volatile values in nested JSON, by path; JSON inside a string counts as nested."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in VOLATILE:
                yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}#", str(len(value))
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{number}]")
    else:
        yield path, repr(value)


def tensors(data: bytes, path: str) -> Iterator[tuple[str, str]]:
    """The tensors and notes of a safetensors file; parsed here, since NumPy has no bfloat16.

    Tensors that a checkpoint stores as numbers of another one are among them.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    note = (header.pop("__metadata__", None) or {}).get("pomona", "")
    with suppress(ValueError):
        note = json.loads(note)
    references = note.pop("repeated", {}) if isinstance(note, dict) else {}
    yield from leaves(note, f"{path} note")
    for name, (source, first, shape) in references.items():
        entry = header[source]
        offset, end = entry["data_offsets"]
        width = (end - offset) // math.prod(entry["shape"])
        span_start = offset + first * width
        span = [span_start, span_start + math.prod(shape) * width]
        header[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": span}
    for name, entry in sorted(header.items()):
        first, last = (start + offset for offset in entry["data_offsets"])
        yield f"{path} {name}", _array(entry["dtype"], entry["shape"], data[first:last])


def arrays(data: bytes, path: str) -> Iterator[tuple[str, str]]:
    """The arrays of an npz file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        for name in sorted(file.files):
            yield (
                f"{path} {name}",
                _array(str(file[name].dtype), file[name].shape, file[name].tobytes()),
            )


def _array(dtype: str, shape: Any, data: bytes) -> str:
    return f"{dtype} {list(shape)} {hashlib.sha256(data).hexdigest()[:16]}"


def read(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """Numbers of one file, by its kind; empty for kinds without numbers of their own."""
    data = path.read_bytes()
    match path.suffix:
        case ".json":
            yield from leaves(json.loads(data), name)
        case ".jsonl":
            for number, line in enumerate(data.splitlines()):
                yield from leaves(json.loads(line), f"{name}:{number + 1}")
        case ".csv":
            rows = csv.DictReader(io.StringIO(data.decode()))
            yield from leaves([dict(row) for row in rows], name)
        case ".toml":
            yield from leaves(tomllib.loads(data.decode()), name)
        case ".npz":
            yield from arrays(data, name)
        case ".safetensors":
            yield from tensors(data, name)


def outcome(folder: Path, patterns: tuple[str, ...] = ("**/*",)) -> Outcome:
    """The content of a folder's files in the order of their names, independent of the folder's own
    name.
    """
    values: Outcome = {}
    for path in sorted({p for pattern in patterns for p in folder.glob(pattern) if p.is_file()}):
        name = HASH.sub("", path.relative_to(folder).as_posix())
        if path.name not in PASSED_OVER:
            values[name] = "a file"
            values |= {k: v.replace(str(folder), "") for k, v in read(path, name)}
    return values


def difference(base: Mapping[str, str], present: Mapping[str, str]) -> str:
    """The number of values that differ between two outcomes, and the first of them; empty if none
    does.
    """
    everywhere = {**base, **present}
    differing = [k for k in everywhere if base.get(k) != present.get(k)]
    if not differing:
        return ""
    old, new = (side.get(differing[0], "not there") for side in (base, present))
    return (
        f"{len(differing)} of {len(everywhere)} values differ, first {differing[0]}: {old} -> {new}"
    )


def digest(values: Outcome) -> str:
    """SHA-256 of an outcome, in hex; ``FAILED`` for a run that failed."""
    return (
        FAILED
        if FAILED in values
        else hashlib.sha256(json.dumps(sorted(values.items())).encode()).hexdigest()
    )


def pomona(source: Path, command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with the packages of a tree."""
    path = os.pathsep.join(str(source / tree) for tree in TREES)
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "pomona", *shlex.split(command)]
    return subprocess.run(
        arguments, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def execute(run: Run, source: Path, folder: Path) -> Outcome:
    """Output of a small run with one tree; a single value under ``FAILED`` if one of its commands
    fails.
    """
    folder.mkdir(parents=True)
    for name, text in run.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for number, command in enumerate(run.commands):
        try:
            process = pomona(source, command, folder)
        except subprocess.TimeoutExpired:
            return {FAILED: f"`{command}` took more than {LIMIT} s"}
        if process.returncode:
            return {
                FAILED: (
                    f"`{command}` ended with {process.returncode}: "
                    f"{' '.join(process.stderr.split()[-40:])}"
                )
            }
        if "--json" in command.split():
            (folder / f"printed-{number}.json").write_text(process.stdout, encoding="utf-8")
    return outcome(folder, run.patterns)


def snapshot(revision: str | None, folder: Path) -> Path:
    """Write both packages of a git revision, or of the working tree, into a folder, as they lie in
    it.
    """
    if revision is None:
        for tree in TREES:
            shutil.copytree(
                ROOT / tree, folder / tree, ignore=shutil.ignore_patterns("__pycache__")
            )
    else:
        arguments = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, *TREES]
        packed = subprocess.run(arguments, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def judge(
    run: Run, sources: Mapping[str, Path], hashes: Mapping[str, str] | None, folder: Path
) -> tuple[int, str, str]:
    """Run with each tree: returns exit code, output line, and the hash of the working tree's
    outcome.
    """
    outcomes = {
        side: execute(run, source, folder / side / run.name) for side, source in sources.items()
    }
    present = outcomes["present"]
    present_hash = digest(present)
    if all(FAILED in values for values in outcomes.values()) and (
        hashes is None or hashes.get(run.name) == FAILED
    ):
        return 2, f"fails    {present[FAILED]}", present_hash
    if hashes is None and "base" not in outcomes:
        return 0, f"hashed   {len(present)} values", present_hash
    if hashes is not None:
        problem = (
            ""
            if hashes.get(run.name) == present_hash
            else "another hash than in the file; a revision as BASE shows where"
        )
        problem = f"{problem}; {present[FAILED]}" if problem and FAILED in present else problem
    else:
        problem = difference(outcomes["base"], present)
    return (
        int(bool(problem)),
        f"DIFFERS  {problem}" if problem else f"same     {len(present)} values",
        present_hash,
    )


def main() -> int:
    """Run, compare, and report. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "base",
        nargs="?",
        help="revision or file of hashes to compare with; none: with --hashes only",
    )
    parser.add_argument("--out", type=Path, help="folder that keeps what the runs write; new")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these runs, or all that begin so"
    )
    parser.add_argument(
        "--hashes", type=Path, help="file for a hash of what each run writes with the present tree"
    )
    hashes: dict[str, str] | None = None
    options = parser.parse_args()
    if options.base is None and options.hashes is None:
        parser.error("give BASE, or --hashes FILE")
    if options.out and options.out.exists():
        parser.error(f"{options.out} is there already; give another --out")
    if options.base and Path(options.base).is_file():
        lines = (
            line.split() for line in Path(options.base).read_text(encoding="utf-8").splitlines()
        )
        hashes = {name: value for value, name in lines}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.out or Path(temporary) / "runs").resolve()
        revisions = {"present": None} | (
            {"base": options.base} if options.base and hashes is None else {}
        )
        sources = {
            side: snapshot(revision, folder / f"{side}-tree")
            for side, revision in revisions.items()
        }
        methods = {
            name: None
            for s in sources.values()
            for name in json.loads(pomona(s, METHODS, folder).stdout)
        }
        chosen = [
            r for r in runs(methods) if not options.only or r.name.startswith(tuple(options.only))
        ]
        with ThreadPoolExecutor(LANES) as pool:
            judged = []
            for run, verdict in zip(
                chosen, pool.map(lambda r: judge(r, sources, hashes, folder), chosen), strict=True
            ):
                judged.append(verdict)
                print(f"{run.name:24} {verdict[1]}", flush=True)
    if options.hashes:
        lines_out = (
            f"{verdict[2]}  {run.name}\n" for run, verdict in zip(chosen, judged, strict=True)
        )
        options.hashes.write_text("".join(lines_out), encoding="utf-8")
    counts = [sum(code == c for code, _, _ in judged) for c in range(3)]
    took = time.monotonic() - began
    well = "the same" if options.base else "hashed"
    print(
        f"{counts[0]} of {len(judged)} runs {well}, {counts[1]} differ, {counts[2]} fail; "
        f"{took:.0f} s"
    )
    return max((code for code, _, _ in judged), default=2)


if __name__ == "__main__":
    sys.exit(main())
