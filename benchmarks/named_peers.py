"""One round of one task, by Pomona and by other simulators, in turns.

    python benchmarks/named_peers.py [--quick] [peers=pomona,pfllib] [methods=fedavg,ditto]
    [rounds=3] [images=N] [batch=64] [data=table] [patience=120]

The task is that of ``fedavg_round.py``: MNIST pooled and split again, Dirichlet(0.1), 20 clients,
batch 10, one local epoch, the network ``cnn`` (582,026 parameters), from the same first weights,
all test data evaluated in every round. It is prepared before any measurement, in a folder that all
candidates read (``peers/task.py``). Images of noise replace MNIST if POMONA_DATA is not set.
``data=table``: the four hospitals of ``examples/heart-disease.toml``, which needs POMONA_DATA, and
a network with one hidden layer of 64.

Every candidate is a separate program in its own environment (``make peers-setup``; candidates
without one are named and left out), started before the first turn. A round begins on request
(``peers/turns.py``), while the other candidates sleep: a first round warms up, then ``rounds``
count. A candidate that is not ready for a round after ``patience`` seconds is ended and named.
Processor seconds are those of all of a candidate's processes. Peak memory is theirs in the warm-up
round, read several times a second: proportional set sizes without the pages of files, since
candidates share those of libraries and of the task. Accuracy is that after the same number of
training rounds, over all test samples; ``--`` if a framework does not evaluate that model.

FedAvg is measured on all images. The other methods, some of which take minutes per round elsewhere,
use a quarter of them and one round after the warm-up, FedALA two: in its second one weights are
learned for many epochs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch

from fedavg_round import SETTINGS
from memory import EVERY, GIGABYTE, pss
from peers import set_up, task
from peers.turns import FOLDER
from pomona.config import resolve
from pomona.core.toml import Tree, read_file
from pomona.data import read
from pomona.models.parameter_space import ParameterSpace
from pomona.scenario import Scenario
from pomona_federation.supervision.supervisor import adopt, disown, end, process_tree, reap
from rate import operations, repeated, step
from rounds import noise, scenario_of
from timing import Table, chosen, engines_here, native_release, publish

SCRIPTS = Path(__file__).parent / "peers"
FOUR_SITES = Path(__file__).parents[1] / "examples" / "heart-disease.toml"
PATIENCE = 120.0  # seconds that a round may take, and the way to the first one
PFLLIB = ("fedavg", "fedala", "ditto", "apfl", "fedamp", "apple", "fedfomo")


@dataclass(frozen=True)
class Peer:
    """A candidate: its program and its use of the cores.

    ``environment``: a name in ``set_up.NAMES``, or empty for Pomona's own.
    """

    script: str
    environment: str = ""
    options: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("fedavg",)

    @property
    def python(self) -> str:
        """Path of the interpreter."""
        return str(set_up.python(self.environment)) if self.environment else sys.executable

    @property
    def missing(self) -> str:
        """Why it cannot run; empty if it can."""
        if self.environment:
            return set_up.missing(self.environment)
        absent = "native" in self.options and not native_release()
        return "the package pomona-native cannot be used" if absent else ""


TWO_PROCESSES, TWO_THREADS = ("--processes", "2"), ("--threads", "2")
FLUKE = ("fedavg", "fedala", "ditto", "apfl", "fedamp")
PEERS = {
    "pomona": Peer("pomona_rounds.py", "", TWO_PROCESSES, PFLLIB),
    "pomona-native": Peer("pomona_rounds.py", "", (*TWO_PROCESSES, "--engine", "native"), PFLLIB),
    "pfllib": Peer("pfllib_rounds.py", "pfllib", TWO_THREADS, PFLLIB),
    "fluke": Peer("fluke_rounds.py", "fluke", TWO_THREADS, FLUKE),
    "pfl": Peer("pfl_rounds.py", "pfl", TWO_PROCESSES),
    "flower": Peer("flower_rounds.py", "flower", TWO_PROCESSES),
    "nvflare": Peer("nvflare_rounds.py", "nvflare", TWO_PROCESSES),
    "flgo": Peer("flgo_rounds.py", "flgo", TWO_THREADS),
    "blazefl": Peer("blazefl_rounds.py", "blazefl", TWO_THREADS),
    "fedjax": Peer("fedjax_rounds.py", "fedjax", TWO_THREADS),
}
# Variants of those above: slower, with less work or less precision. Measured on request.
VARIANTS = {
    "pomona-native-bf16": Peer(
        "pomona_rounds.py",
        "",
        (*TWO_PROCESSES, "--engine", "native", "--precision", "bf16"),
        PFLLIB,
    ),
    "pfllib-1-thread": Peer("pfllib_rounds.py", "pfllib", (), PFLLIB),
    "pfllib-test-alone": Peer("pfllib_rounds.py", "pfllib", (*TWO_THREADS, "--test-alone"), PFLLIB),
    "fluke-1-thread": Peer("fluke_rounds.py", "fluke", (), FLUKE),
    "pfl-2-threads": Peer("pfl_rounds.py", "pfl", TWO_THREADS),
    "flgo-2-processes": Peer("flgo_rounds.py", "flgo", TWO_PROCESSES),
    "flgo-1-thread": Peer("flgo_rounds.py", "flgo"),
    "blazefl-2-processes": Peer("blazefl_rounds.py", "blazefl", TWO_PROCESSES),
}


@dataclass(frozen=True)
class Size:
    """Total images (all of MNIST's if unset) and counted rounds, for FedAvg and the others; peers
    and methods.

    ``rounds_by_method``: counted rounds of other methods, if not one.
    """

    images: int | None
    rounds: int
    other_images: int
    rounds_by_method: Mapping[str, int]
    peers: tuple[str, ...]
    methods: tuple[str, ...]


FULL = Size(None, 3, 17_500, {"fedala": 2}, tuple(PEERS), tuple(task.METHODS))
QUICK = Size(400, 1, 400, {}, ("pomona", "pomona-native"), ("fedavg",))


def prepare(
    folder: Path, images: int | None, seed: int, batch: int = 10, name: str = "mnist"
) -> task.Task:
    """Write the task for all candidates: ``mnist``, or ``table``, of which all rows are taken."""
    general: Tree = {"seed": seed, "batch_size": batch}
    if name == "table":
        own: Tree = {"model": {"name": "mlp"}, "clients": 4, "data": {"validation_share": 0.0}}
        with chdir(os.environ["POMONA_DATA"]):  # the files' names are relative
            config = resolve(read_file(FOUR_SITES), own, general)
            return written(folder, scenario_of(config, read(config.data)))
    real, train = "POMONA_DATA" in os.environ, images and images * 3 // 4
    data: Tree = {"name": "mnist", "train_limit": train, "test_limit": images and images - train}
    # What is usual for the smallest client is out of reach in a few rows of MNIST; a batch will do.
    small: Tree = {"partition": {"min_size": min(10, images // 80)}} if real and images else {}
    config = resolve(SETTINGS, {"data": data if real else {"name": "rounds:noise"}}, small, general)
    dataset = read(config.data) if real else noise(images or 70_000)
    return written(folder, scenario_of(config, dataset))


def written(folder: Path, scenario: Scenario) -> task.Task:
    """Write a scenario as a task."""
    config, dataset = scenario.config, scenario.dataset
    module = scenario.module()
    row = scenario.initial(None)
    weights = ParameterSpace(module).unpack(row)
    rows = {
        f"{s}_{i}": getattr(c, s)
        for i, c in enumerate(scenario.partition.clients)
        for s in ("train", "test")
    }
    rows |= {
        f"weights_{k}": weights[n].contiguous().numpy()
        for k, (n, _) in enumerate(module.named_parameters())
    }
    rows |= {name: np.asarray(getattr(dataset, name), np.float32) for name in ("shift", "scale")}
    names = ("clients", "batch_size", "lr", "local_epochs", "seed")
    settings = {name: getattr(config, name) for name in names}
    return task.write(
        folder, dataset.x, dataset.y, rows, {**settings, "classes": len(dataset.classes)}
    )


def rates(batch: int) -> dict[str, float]:
    """GFLOP/s of each engine in a step of the ``cnn``, by one thread; PyTorch's count of them."""
    torch.set_num_threads(1)
    steps = {e: step("cnn", batch, "fp32", [f"engine={e}"]) for e in engines_here()}
    count = operations(steps["torch"])
    return {
        f"GFLOP/s in a step of the cnn, {engine}, one thread": round(
            count / 1e9 / median(repeated(work, 20) for _ in range(5)), 1
        )
        for engine, work in steps.items()
    }


class CandidateError(Exception):
    """A candidate's program ended, or made no progress."""


class Running:
    """A candidate's program, waiting for its turn or running it."""

    def __init__(self, name: str, folder: Path, method: str, rounds: int, patience: float) -> None:
        peer = {**PEERS, **VARIANTS}[name]
        self.name, self.folder, self.rounds = name, folder / f"{name}-turns", 0
        self.patience, self.peak = patience, 0
        self.folder.mkdir()
        env = {
            **os.environ,
            FOLDER: str(self.folder),
            "PFLLIB": str(set_up.checkout()),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        env |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self.folder),
            "FLWR_HOME": str(self.folder),
        }
        env |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # else anything else that runs goes before Ray's actors
            "WANDB_MODE": "disabled",
            "PYTHONPATH": own_path(peer),
        }
        command = [
            peer.python,
            str(SCRIPTS / peer.script),
            str(folder / "task"),
            method,
            str(rounds),
            *peer.options,
        ]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, cwd=self.folder
            )

    def wait(self, number: int) -> None:
        """Wait until round ``number`` could begin, so that the previous one is over; observe the
        memory of the first.
        """
        start_time, sampled = time.monotonic(), 0.0
        while not (self.folder / f"asked-{number}").exists():
            now = time.monotonic()
            if self.process.poll() is not None or now > start_time + self.patience:
                log = (self.folder / "log").read_text(errors="replace")
                raise CandidateError(
                    f"{self.name} did not get to round {number} in {now - start_time:.0f} s of "
                    f"{self.patience:.0f}:\n{log[-4000:]}"
                )
            if number == 2 and now > sampled + EVERY:
                sampled, tree = now, process_tree(self.process.pid)
                self.peak = max(self.peak, sum(pss(p.pid, "Pss_Anon", "Pss_Shmem") for p in tree))
            time.sleep(0.005)

    def round(self) -> tuple[float, float]:
        """Give it its turn. Returns wall-clock and processor seconds."""
        self.rounds += 1
        used, start_time = self.used(), time.perf_counter()
        (self.folder / f"go-{self.rounds}").touch()
        self.wait(self.rounds + 1)
        return time.perf_counter() - start_time, self.used() - used

    def used(self) -> float:
        """Processor seconds so far of its processes, including ended ones."""
        total = 0.0
        for process in process_tree(self.process.pid):
            try:
                # user, system, and these of children that have ended
                total += sum(process.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        return total

    def end(self) -> None:
        """End it and all its descendants."""
        end(lambda: process_tree(self.process.pid), patience=5.0)

    def accuracies(self) -> dict[int, float]:
        """Test accuracy by rounds of training."""
        path, scores = (
            self.folder / "scores.jsonl",
            defaultdict[int, list[Mapping[str, float]]](list),
        )
        for line in path.read_text().splitlines() if path.exists() else ():
            score = json.loads(line)
            scores[score["trained"]].append(score)
        return {
            n: sum(s["right"] for s in ss) / sum(s["samples"] for s in ss)
            for n, ss in scores.items()
        }


def own_path(peer: Peer) -> str:
    """PYTHONPATH of a candidate: Pomona keeps the given one; the others' child processes find the
    programs.
    """
    return str(SCRIPTS) if peer.environment else os.environ.get("PYTHONPATH", "")


@contextmanager
def running(
    folder: Path, method: str, names: Sequence[str], rounds: int, patience: float
) -> Iterator[list[Running]]:
    """Candidates' programs, ready for their first turns; they end with the block, with all their
    descendants.
    """
    adopt()
    children, programs = {*psutil.Process().children()}, list[Running]()
    try:
        ready = []
        for name in names:  # one after another: some start many processes
            programs.append(Running(name, folder, method, rounds, patience))
            try:
                programs[-1].wait(1)
                ready.append(programs[-1])
            except CandidateError as error:
                print(f"left out: {error}", file=sys.stderr, flush=True)
                programs[-1].end()
        yield ready
    finally:
        end(
            lambda: [p for program in programs for p in process_tree(program.process.pid)],
            patience=5.0,
        )
        for program in programs:
            program.process.wait(5)
        # descendants that left their tree
        end(lambda: {*psutil.Process().children()} - children, patience=5.0)
        reap()
        disown()


def measure(
    folder: Path,
    method: str,
    names: Sequence[str],
    rounds: int,
    patience: float,
    notes: Mapping[str, object],
) -> Table:
    """All candidates' rounds of one method, in turns."""
    with running(folder, method, names, rounds + 1, patience) as candidates:
        times: dict[str, list[tuple[float, float]]] = {
            candidate.name: [] for candidate in candidates
        }
        for number in range(rounds + 1):
            for candidate in [*candidates]:
                try:
                    times[candidate.name].append(candidate.round())
                except CandidateError as error:
                    print(f"left out: {error}", file=sys.stderr, flush=True)
                    candidate.end()
                    candidates.remove(candidate)
                    del times[candidate.name]
            row = {name: rounds_[-1] for name, rounds_ in times.items()}
            print(
                json.dumps({"method": method, "round": number + 1, "seconds": row}),
                file=sys.stderr,
                flush=True,
            )
        accuracies = {candidate.name: candidate.accuracies() for candidate in candidates}
        peaks = {candidate.name: candidate.peak / GIGABYTE for candidate in candidates}
    first = next(iter(times))
    rows = {}
    for name, turns in times.items():
        wall, used = zip(*turns[1:], strict=True)
        share = [
            seconds / baseline
            for (seconds, _), (baseline, _) in zip(turns[1:], times[first][1:], strict=True)
        ]
        curve = [accuracies[name].get(n) for n in range(1, rounds + 1)]
        rows[name] = {
            "median s": median(wall),
            "min s": min(wall),
            "max s": max(wall),
            f"times {first}'s": median(share),
            "processor s": median(used),
            "peak GB": peaks[name],
            "accuracy after 1, 2, ... rounds": " ".join(
                "--" if a is None else f"{a:.4f}" for a in curve
            ),
            "how": " ".join({**PEERS, **VARIANTS}[name].options).replace("--", ""),
        }
    return publish(f"A round of {method}", rows, rounds, **notes)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    known = {"peers", "methods", "rounds", "images", "seed", "batch", "data", "patience"}
    assert options.keys() <= known, options
    listed: Callable[[str, tuple[str, ...]], tuple[str, ...]] = lambda key, usual: (  # noqa: E731
        tuple(options[key].split(",")) if key in options else usual
    )
    peers, methods = listed("peers", size.peers), listed("methods", size.methods)
    seed, batch = int(options.get("seed", 0)), int(options.get("batch", 10))
    data, patience = options.get("data", "mnist"), float(options.get("patience", PATIENCE))
    available = []
    for name in peers:
        peer = {**PEERS, **VARIANTS}[name]
        print(
            f"{name}: {peer.missing}", file=sys.stderr, flush=True
        ) if peer.missing else available.append(name)
    tables = []
    for method in methods:
        capable = [name for name in available if method in {**PEERS, **VARIANTS}[name].methods]
        images, rounds = (size.images, size.rounds) if method == "fedavg" else (
            size.other_images, size.rounds_by_method.get(method, 1)
        )  # fmt: skip
        images, rounds = (
            int(options["images"]) if "images" in options else images,
            int(options.get("rounds", rounds)),
        )
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            prepared = prepare(folder / "task", images, seed, batch, data)
            sizes = {
                s: sum(len(prepared.rows[f"{s}_{i}"]) for i in range(prepared.settings["clients"]))
                for s in ("train", "test")
            }
            notes = {
                "data": data if "POMONA_DATA" in os.environ else "noise (POMONA_DATA is not set)",
                "training samples": sizes["train"],
                "test samples": sizes["test"],
                "batch": batch,
                **rates(batch),
                "load before": os.getloadavg()[0],
                "seed": seed,
            }
            tables.append(measure(folder, method, capable, rounds, patience, notes))
    return tables


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
