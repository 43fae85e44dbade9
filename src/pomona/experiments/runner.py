"""Running a bench: submits every cell without a result, search first, and writes the table."""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import current_thread, main_thread
from time import sleep
from types import FrameType
from typing import Any

from pomona.core.errors import ConfigError, LockedError, WorkerError
from pomona.core.files import own, probe, writing
from pomona.data.axes import InMemory
from pomona.experiments.bench_results import Bench, collect, require_same, save
from pomona.experiments.executors import ProcessPool
from pomona.experiments.grid import Cell, Group, plan
from pomona.experiments.job import Failure, JobState, forget, look, put_on_file, tidy, work
from pomona.experiments.suite import Size, Suite, read_suite
from pomona.storage.lock import in_use, locked, waiting_lock

Verdicts = Mapping[Path, JobState]
Watch = Callable[[Sequence[Group], Verdicts], None]
LOOK = 0.5  # seconds between display updates, and between checks for an interrupt
WRITING = ".writing"  # lock file: benches that share a folder write its own files in turn
GROUP = 0o660  # its mode, less the umask: users who share a folder share a group
LIVES = 2  # how often a cell may lose its process before it counts as failed


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[Callable[[], None]]:
    """Postpone both signals to calls of the returned function, and to the end of the block.

    The original handlers run then, so that their exceptions are raised there. Outside the main
    thread, where Python runs no handlers, nothing changes.
    """
    came: list[int] = []

    def heed() -> None:
        """Run the handler of the first signal received, if any."""
        if came:
            number = came[0]
            came.clear()
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, None)

    if current_thread() is not main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # SIG_IGN and SIG_DFL need not be postponed: the first does nothing, the second ends the process
    # at once.
    before: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in SIGNALS}
    mine = [
        s
        for s in SIGNALS
        if callable(before[s]) and before[s] not in (signal.SIG_IGN, signal.SIG_DFL)
    ]
    for s in mine:
        signal.signal(s, note)
    try:
        yield heed
    finally:
        for s in mine:
            signal.signal(s, before[s])
    heed()


def run(
    suite: Path | str | Mapping[str, Any] | Suite,
    out: Path,
    executor: Executor | None = None,
    *,
    size: Size = "cpu",
    scenarios: Collection[str] = (),
    methods: Collection[str] = (),
    jobs: int | None = None,
    retry: bool = False,
    share: bool = False,
    watch: Watch | None = None,
) -> Bench:
    """Run or resume a suite, and tabulate it.

    Every cell is a run folder: finished ones are kept, interrupted ones resume after their last
    committed round, and a failure is stored with its reason while the others continue.

    Running a part of a suite requests fewer cells of the same bench: in the results, the others
    have the state of their folders.

    Args:
        suite: the file, its tree, or the suite itself.
        out: folder of the bench; created if missing.
        executor: runs the cells, one job each; if None, processes of this machine, which import the
            caller's main module: guard it by ``if __name__ == "__main__"``. Jobs must have ``out``
            and the data at the same paths.
        size: one of the suite's sizes.
        scenarios: the columns to run; all if empty.
        methods: the rows to run; all if empty.
        jobs: number of processes on this machine; one per core if None. Unused with an executor.
        retry: whether to run requested cells again that failed before.
        share: run cells that no other bench in ``out`` runs, beside others that share it; returns
            when all requested cells are settled, by whomever.
        watch: called at the start, about twice per second and after each cell, with the requested
            groups and verdicts.

    Returns:
        The results, as ``pomona.experiments.load(out)`` would read them.

    Raises:
        ConfigError: an invalid key or value of the suite, or of ``jobs``; nothing is run then.
        LockedError: another bench is running in ``out``, and not both share it.
        StorageError: ``out`` cannot be written, or has the table of another suite.
        WorkerError: the executor is gone. Start again to resume.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs = {jobs}: give 1 or more")
    suite = read_suite(suite)
    groups, pairs, out = plan(suite, size), suite.pairs(size, scenarios, methods), out.absolute()
    asked = [group for group in groups if (group.scenario, group.method) in pairs]
    require_same(suite, out)
    with locked(out, share), writing(out):
        with waiting_lock(out / WRITING, GROUP):
            probe(out)
        most = (jobs or len(os.sched_getaffinity(0))) if share else sys.maxsize
        course = _Course(asked, out, suite.keep_models, share, watch, most)
        course.read(groups, retry)
        try:
            if any(course.todo(group) for group in asked):
                _drive(course, executor, jobs)
        finally:
            with waiting_lock(out / WRITING, GROUP):
                if share:
                    course.read_again(groups)
                bench = collect(suite, size, groups, course.verdicts, out)
                save(bench)
    if share:
        with suppress(LockedError), locked(out):  # the last of them
            replace(course, share=False).read(groups, retry=False)
    return bench


def _drive(course: "_Course", executor: Executor | None, jobs: int | None) -> None:
    with postponed() as heed:
        if executor is not None:
            course.run(executor, heed)
            return
        lanes = ProcessPool(jobs)
        try:
            course.run(lanes, heed)
        except BaseException:
            lanes.shutdown(wait=False, cancel_futures=True)
            raise
        lanes.shutdown()


@dataclass
class _Course:
    """Progress of the requested groups of a bench.

    ``most``: of its jobs at a time; beside other benches no more than there are processes, so that
    a cell that waits can be taken by another.
    """

    groups: Sequence[Group]
    out: Path
    keep_models: bool
    share: bool
    watch: Watch | None
    most: int
    verdicts: dict[Path, JobState] = field(default_factory=dict)
    _jobs: dict[Future[Failure | None], Cell] = field(default_factory=dict)
    _lost: dict[Path, int] = field(default_factory=dict)

    def read(self, whole: Sequence[Group], retry: bool) -> None:
        """Read the state of all cells of the bench from their folders; ``retry``: ignore requested
        cells' failures.
        """
        again = {cell.folder for group in self.groups for cell in group.cells()} if retry else set()
        cells = {cell.folder: cell for group in whole for cell in group.cells()}
        for cell in cells.values():
            folder = own(self.out, cell.folder)
            if cell.folder in again:
                forget(folder)
            self._look(cell)

    def read_again(self, whole: Sequence[Group]) -> None:
        """Read what other benches have done since; failures that are on no file stay known."""
        before = dict(self.verdicts)
        self.read(whole, retry=False)
        for folder, verdict in self.verdicts.items():
            if not verdict.settled and folder in before:
                self.verdicts[folder] = before[folder]

    def todo(self, group: Group) -> list[Cell]:
        """Return the cells of a group that are ready and have not been submitted."""
        asked = {cell.folder for cell in self._jobs.values()}
        wanted = {
            c.folder: c for c in group.wanted(self.verdicts) if not self.verdicts[c.folder].settled
        }
        return [cell for folder, cell in wanted.items() if folder not in asked]

    def run(self, executor: Executor, heed: Callable[[], None]) -> None:
        """Keep the executor busy until every cell is settled; ``heed`` raises on an interrupt."""
        try:
            self._ask(executor)
            self._show()
            while self._jobs or any(self.todo(group) for group in self.groups):
                done, _ = wait(self._jobs, timeout=LOOK, return_when=FIRST_COMPLETED)
                if not self._jobs:
                    sleep(LOOK)
                heed()
                for job in done:
                    self._settle(self._jobs.pop(job), job)
                self._ask(executor)
                self._show()
        finally:
            for job in list(self._jobs):
                job.cancel()

    def _ask(self, executor: Executor) -> None:
        """Submit what is ready, except the cells that another process runs: until they end."""
        for cell in (cell for group in self.groups for cell in self.todo(group)):
            if len(self._jobs) >= self.most:
                return
            if in_use(self.out / cell.folder):
                continue
            self._look(cell)  # another process may have ended it
            if not self.verdicts[cell.folder].settled:
                config = cell.config
                tree = {**config.tree(), "track": config.track}
                held = (config.data,) if isinstance(config.data, InMemory) else ()
                job = executor.submit(work, tree, str(self.out / cell.folder), *held)
                self._jobs[job] = cell

    def _settle(self, cell: Cell, job: Future[Failure | None]) -> None:
        """Determine the outcome of a cell; a lost process is replaced once."""
        try:
            failure = job.result()
        except (BrokenExecutor, CancelledError) as fault:
            raise WorkerError(
                f"the executor is gone ({type(fault).__name__}); start again to continue"
            ) from fault
        except Exception as fault:
            self._lost[cell.folder] = self._lost.get(cell.folder, 0) + 1
            if self._lost[cell.folder] < LIVES:
                return
            failure = Failure.of(fault)
        if failure and failure.code == LockedError.code:
            return  # another process has taken it: ask again until it ends
        if failure:
            self._fail(cell, failure)
        else:
            self._look(cell)
            if not self.verdicts[cell.folder].settled:
                reason = (
                    "its worker says it is finished, but nothing is here; give an --out on "
                    "storage that all share"
                )
                self._fail(cell, Failure(1, reason, passing=True))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        if self.share:
            self._look(cell)
            if self.verdicts[cell.folder].state == "finished":  # by another bench, meanwhile
                return
        failure = replace(failure, reason=failure.reason.replace(f"{self.out}/", ""))
        if not failure.passing:
            put_on_file(self.out / cell.folder, failure)
        self.verdicts[cell.folder] = JobState("failed", failure)

    def _look(self, cell: Cell) -> None:
        verdict = look(self.out / cell.folder, cell.config)
        if verdict.state == "finished" and not self.share:  # else another may be reading it
            tidy(self.out / cell.folder, self.keep_models)
        self.verdicts[cell.folder] = verdict

    def _show(self) -> None:
        if self.watch:
            self.watch(self.groups, self.verdicts)
