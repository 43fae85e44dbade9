"""Coverage-guided fuzzing of the readers with atheris (libFuzzer), as OSS-Fuzz does.

    make fuzz-guided                                       # all of DECODERS, two minutes each
    make fuzz-guided ARGS="--seconds 600 task uplink"      # some, by the beginning of their name

The targets are those of ``targets.py``. Each begins with inputs that its strategy makes, and
libFuzzer keeps what reaches new edges of Pomona's code; libraries are not instrumented. Printed are
executions and edges; what breaks is kept in ``.hypothesis/found``.
"""

# ruff: noqa: T201 - a command
import argparse
import hashlib
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

import atheris

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parents[2] / p) for p in ("tests", "federation/tests"))]


def instrumented():
    """Within this context, modules of Pomona that are imported count their edges."""
    return atheris.instrument_imports(include=["pomona", "pomona_federation"])


with instrumented():
    from guard import outcome
    from hypothesis import HealthCheck, given, seed, settings
    from test_foreign_bytes import FINDS, TARGETS
    from worlds import World

DECODERS = (
    "hello, as text", "hello-reply, as text", "task, as text", "answer, as text", "refusal, as text",
    "sum-request, as text", "survey-answer, as text", "study, as proposed", "uplink, unsealed", "row, unpacked",
    "silo.toml of a silo, shown", "federation.toml of a silo, shown", "state/rounds.jsonl of a silo, shown",
    "run/audit.jsonl of a server, shown", "events.jsonl of a run, on a page", "partition.json, taken for a run",
    "checkpoint, sealed", "settings of a run", "suite of a bench", "ledger.jsonl", "model file, asked",
    "table.csv, read", "table.parquet", "texts.csv", "table.npz", "rows.csv, asked", "list.csv", "a/1.dcm", "a/v.nii,",
)  # fmt: skip


def examples(strategy, count=40):
    """Inputs that a target's strategy makes."""
    inputs = []

    def collect(data):
        inputs.append(data)

    checks = settings(max_examples=count, deadline=None, database=None, suppress_health_check=[*HealthCheck])  # fmt: skip
    seed(0)(checks(given(strategy)(collect)))()
    return inputs


def fuzz(target, world, corpus, seconds):
    """Fuzz one target in this process, which ends with it."""
    with instrumented():  # also what the first inputs import
        strategy, act = target.attack(world)
        for data in examples(strategy):
            outcome(act, data, world.outside)
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def run_one(data):
        outcome(act, data, world.outside)

    FINDS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", target.name)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=60", "-rss_limit_mb=4000", "-max_len=65536"]  # fmt: skip
    atheris.Setup(["guided", *options, f"-artifact_prefix={FINDS}/{name}-", str(corpus)], run_one)
    atheris.Fuzz()


def forked(act, log):
    """Whether a function fails in a fork of this process, and what it writes."""
    child = os.fork()
    if not child:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        try:
            act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)  # what ends well does not return from ``atheris.Fuzz``
    code = os.waitpid(child, 0)[1]
    return code != 0, log.read_text(errors="replace")


def first_and_last(pattern, text):
    """The first and the last number that a log has for a pattern; 0 for none."""
    numbers = [int(number) for number in re.findall(pattern, text)] or [0]
    return numbers[0], numbers[-1]


def main(arguments):
    """Fuzz each decoder for its seconds, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args(arguments)
    names = tuple(options.names) or DECODERS
    if missing := [n for n in names if not any(t.name.startswith(n) for t in TARGETS)]:
        parser.error(f"no target begins with {missing[0]!r}")
    broken = executions = 0
    with tempfile.TemporaryDirectory() as folder:
        with instrumented():
            world = World(Path(folder))
            assert world.exchanges
            assert world.run  # made before the forks, each of which would make it again
        for target in (t for t in TARGETS if t.name.startswith(names)):
            corpus = Path(tempfile.mkdtemp(dir=folder))
            log = corpus.with_suffix(".log")
            fault, text = forked(lambda t=target, c=corpus: fuzz(t, world, c, options.seconds), log)
            _, count = first_and_last(r"(?:number_of_executed_units: |^#)(\d+)", text)
            initial_edges, final_edges = first_and_last(r"cov: (\d+)", text)
            executions, broken = executions + count, broken + fault
            print(f"{target.name}: {count} executions, {initial_edges} edges at first, {final_edges} at the end{', A FAULT' * fault}", flush=True)  # fmt: skip
            if fault:
                print(text[-3000:], flush=True)
    print(f"{executions} executions, {broken} targets with a fault")
    return broken > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
