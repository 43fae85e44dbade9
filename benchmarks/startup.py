"""Time from a command to its first work: importing the package, and the first round of the demo.

Then whole commands, in processor seconds: help, the demo, a short run with its page, and the page
alone; the run is that of the README's four hospitals if ``POMONA_DATA`` has them, else of digits.

    python benchmarks/startup.py [--quick]

Fresh processes that take turns. ``import pomona`` must not import PyTorch, which is checked. The
demo has its own folder; its clock stops when the first round is in the record, and the process is
ended.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import sleep

from timing import Table, Times, chosen, publish, seconds

TARGET = 5.0  # seconds from the command to the demo's first round
SCRIPTS = {
    "python": "",
    "import pomona": (
        "import pomona, sys; assert 'torch' not in sys.modules, 'pomona imported torch'"
    ),
    "import torch": "import torch",
    "pomona --help": "from pomona.cli import main; main(['--help'])",
}
FIRST_ROUND = "the demo's first round"
QUICK, FULL = 1, 11  # turns
HOSPITALS = Path(__file__).parents[1] / "examples/heart-disease.toml"


def script(text: str) -> float:
    """Seconds of a fresh interpreter that runs a script; raises if it fails."""
    return seconds(
        lambda: subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.DEVNULL)
    )


def first_round(command: tuple[str, ...] = ("demo",)) -> float:
    """Seconds from starting a command with ``--out`` to its first recorded round."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"

        def until_recorded() -> None:
            while not any(map(recorded, output.rglob("events.jsonl"))):
                assert process.poll() is None, f"{' '.join(command)} ended before its first round"
                sleep(0.005)

        def work() -> None:
            nonlocal process
            argv = [sys.executable, "-m", "pomona", *command, "--out", str(output)]
            process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until_recorded()

        process: subprocess.Popen[bytes]
        took = seconds(work)
        process.terminate()
        process.wait()
        return took


def recorded(events: Path) -> bool:
    """Whether a record has a round; an incomplete line does not count."""
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    return any(json.loads(line)["event"] == "round" for line in lines if line.endswith("\n"))


def processor(command: list[str], folder: Path) -> float:
    """Processor seconds (user and system) of a whole command in a fresh process; raises if it
    fails.
    """
    start_time = _children_seconds()
    subprocess.run(
        [sys.executable, "-m", "pomona", *command], check=True, cwd=folder, capture_output=True
    )
    return _children_seconds() - start_time


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(name, words) of whole commands; ``folder``: an empty working folder."""
    hospitals = Path(os.environ.get("POMONA_DATA", "nowhere")).absolute() / "heart_disease"
    settings, data = ["rounds=30"], "digits"
    if hospitals.is_dir():
        (folder / "heart_disease").symlink_to(hospitals)
        data = "four hospitals"
        (folder / HOSPITALS.name).write_bytes(HOSPITALS.read_bytes())
        settings = [HOSPITALS.name]
    yield "pomona --help", ["--help"]
    yield "pomona demo", ["demo", "--out", "demo"]
    yield f"pomona run apple, {data}", ["run", "apple", *settings, "--out", "run"]
    yield "pomona report of it", ["report", "run", "--out", "page"]


def main(turns: int, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    assert not arguments, f"no settings here: {arguments}"
    candidates: dict[str, Callable[[], float]] = {
        name: partial(script, text) for name, text in SCRIPTS.items()
    }
    times = Times.interleaved({**candidates, FIRST_ROUND: first_round}, turns)
    rows = {
        name: {
            "median s": times.median(name),
            "max s": max(times.seconds[name]),
            "times python's": times.cost(name),
            "target s": TARGET if name == FIRST_ROUND else None,
        }
        for name in times.seconds
    }
    return [publish("From a command to its first work", rows, times.turns), whole_commands(turns)]


def whole_commands(turns: int) -> Table:
    """Processor seconds of whole commands, with a new folder for each turn."""
    durations: dict[str, list[float]] = {}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            for name, command in commands(Path(folder)):
                durations.setdefault(name, []).append(processor(command, Path(folder)))
    times = Times(durations)
    rows = {
        n: {"median processor s": times.median(n), "min s": min(t), "max s": max(t)}
        for n, t in durations.items()
    }
    return publish("Whole commands", rows, turns)


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
