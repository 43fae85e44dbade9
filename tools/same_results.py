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


def leaves(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """All non-volatile values in nested JSON, by path; JSON inside a string counts as nested."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in VOLATILE:
                yield from leaves(inner, f"{at}.{key}")
    elif isinstance(value, list):
        yield f"{at}#", str(len(value))
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{at}[{number}]")
    else:
        yield at, repr(value)


def tensors(data: bytes, at: str) -> Iterator[tuple[str, str]]:
    """The tensors and notes of a safetensors file; parsed here, since NumPy has no bfloat16."""
    begin = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:begin])
    yield from leaves(header.pop("__metadata__", None), f"{at} note")
    for name, entry in sorted(header.items()):
        first, last = (begin + offset for offset in entry["data_offsets"])
        yield f"{at} {name}", _array(entry["dtype"], entry["shape"], data[first:last])


def arrays(data: bytes, at: str) -> Iterator[tuple[str, str]]:
    """The arrays of an npz file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        for name in sorted(file.files):
            yield (
                f"{at} {name}",
                _array(str(file[name].dtype), file[name].shape, file[name].tobytes()),
            )


def _array(dtype: str, shape: Any, data: bytes) -> str:
    return f"{dtype} {list(shape)} {hashlib.sha256(data).hexdigest()[:16]}"


def read(path: Path, at: str) -> Iterator[tuple[str, str]]:
    """Numbers of one file, by its kind; empty for kinds without numbers of their own."""
    data = path.read_bytes()
    match path.suffix:
        case ".json":
            yield from leaves(json.loads(data), at)
        case ".jsonl":
            for number, line in enumerate(data.splitlines()):
                yield from leaves(json.loads(line), f"{at}:{number + 1}")
        case ".csv":
            rows = csv.DictReader(io.StringIO(data.decode()))
            yield from leaves([dict(row) for row in rows], at)
        case ".toml":
            yield from leaves(tomllib.loads(data.decode()), at)
        case ".npz":
            yield from arrays(data, at)
        case ".safetensors":
            yield from tensors(data, at)


def outcome(folder: Path, kept: tuple[str, ...] = ("**/*",)) -> Outcome:
    """The content of a folder's files in the order of their names, independent of the folder's own
    name.
    """
    found: Outcome = {}
    for path in sorted({p for pattern in kept for p in folder.glob(pattern) if p.is_file()}):
        at = HASH.sub("", path.relative_to(folder).as_posix())
        if path.name not in PASSED_OVER:
            found[at] = "a file"
            found |= {k: v.replace(str(folder), "") for k, v in read(path, at)}
    return found


def difference(base: Mapping[str, str], present: Mapping[str, str]) -> str:
    """The number of values that differ between two outcomes, and the first of them; empty if none
    does.
    """
    everywhere = {**base, **present}
    places = [k for k in everywhere if base.get(k) != present.get(k)]
    if not places:
        return ""
    was, now = (side.get(places[0], "not there") for side in (base, present))
    return f"{len(places)} of {len(everywhere)} values differ, first {places[0]}: {was} -> {now}"


def digest(found: Outcome) -> str:
    """SHA-256 of an outcome, in hex; ``FAILED`` for a run that failed."""
    return (
        FAILED
        if FAILED in found
        else hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()
    )


def pomona(source: Path, command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command with the packages of a tree."""
    path = os.pathsep.join(str(source / tree) for tree in TREES)
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pomona", *shlex.split(command)]
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
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
            done = pomona(source, command, folder)
        except subprocess.TimeoutExpired:
            return {FAILED: f"`{command}` took more than {LIMIT} s"}
        if done.returncode:
            return {
                FAILED: (
                    f"`{command}` ended with {done.returncode}: "
                    f"{' '.join(done.stderr.split()[-40:])}"
                )
            }
        if "--json" in command.split():
            (folder / f"printed-{number}.json").write_text(done.stdout, encoding="utf-8")
    return outcome(folder, run.kept)


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
        words = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, *TREES]
        packed = subprocess.run(words, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def judge(
    run: Run, sources: Mapping[str, Path], told: Mapping[str, str] | None, out: Path
) -> tuple[int, str, str]:
    """Run with each tree: returns exit code, output line, and the hash of the working tree's
    outcome.
    """
    found = {side: execute(run, source, out / side / run.name) for side, source in sources.items()}
    present = found["present"]
    own = digest(present)
    if all(FAILED in each for each in found.values()) and (
        told is None or told.get(run.name) == FAILED
    ):
        return 2, f"fails    {present[FAILED]}", own
    if told is None and "base" not in found:
        return 0, f"hashed   {len(present)} values", own
    if told is not None:
        said = (
            ""
            if told.get(run.name) == own
            else "another hash than in the file; a revision as BASE shows where"
        )
        said = f"{said}; {present[FAILED]}" if said and FAILED in present else said
    else:
        said = difference(found["base"], present)
    return int(bool(said)), f"DIFFERS  {said}" if said else f"same     {len(present)} values", own


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
    told: dict[str, str] | None = None
    words = parser.parse_args()
    if words.base is None and words.hashes is None:
        parser.error("give BASE, or --hashes FILE")
    if words.out and words.out.exists():
        parser.error(f"{words.out} is there already; give another --out")
    if words.base and Path(words.base).is_file():
        lines = (line.split() for line in Path(words.base).read_text(encoding="utf-8").splitlines())
        told = {name: value for value, name in lines}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        out = (words.out or Path(temporary) / "runs").resolve()
        revisions = {"present": None} | (
            {"base": words.base} if words.base and told is None else {}
        )
        sources = {
            side: snapshot(revision, out / f"{side}-tree") for side, revision in revisions.items()
        }
        known = {
            name: None
            for s in sources.values()
            for name in json.loads(pomona(s, METHODS, out).stdout)
        }
        chosen = [r for r in runs(known) if not words.only or r.name.startswith(tuple(words.only))]
        with ThreadPoolExecutor(LANES) as pool:
            judged = []
            for run, verdict in zip(
                chosen, pool.map(lambda r: judge(r, sources, told, out), chosen), strict=True
            ):
                judged.append(verdict)
                print(f"{run.name:24} {verdict[1]}", flush=True)
    if words.hashes:
        lines_out = (
            f"{verdict[2]}  {run.name}\n" for run, verdict in zip(chosen, judged, strict=True)
        )
        words.hashes.write_text("".join(lines_out), encoding="utf-8")
    counts = [sum(code == c for code, _, _ in judged) for c in range(3)]
    took = time.monotonic() - began
    well = "the same" if words.base else "hashed"
    print(
        f"{counts[0]} of {len(judged)} runs {well}, {counts[1]} differ, {counts[2]} fail; "
        f"{took:.0f} s"
    )
    return max((code for code, _, _ in judged), default=2)


if __name__ == "__main__":
    sys.exit(main())
