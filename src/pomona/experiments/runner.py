"""Running a bench: submits every cell without a result, search first, and writes the table."""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import current_thread, main_thread
from time import sleep
from types import FrameType
from typing import Any

from pomona.core.errors import ConfigError, LockedError, WorkerError
from pomona.core.files import probe, safe_path, writing
from pomona.data.axes import InMemory
from pomona.experiments.bench_results import Bench, collect, require_same, save
from pomona.experiments.executors import ProcessPool
from pomona.experiments.grid import Cell, Group, plan
from pomona.experiments.job import (
    Failure,
    JobState,
    clear_failure,
    read_state,
    store_failure,
    tidy,
    work,
)
from pomona.experiments.suite import Size, Suite, read_suite
from pomona.storage.lock import in_use, locked, waiting_lock

Verdicts = Mapping[Path, JobState]
Watch = Callable[[Sequence[Group], Verdicts], None]
POLL_SECONDS = 0.5  # seconds between display updates, and between checks for an interrupt
WRITING = ".writing"  # lock file: benches that share a folder write its own files in turn
GROUP = 0o660  # its mode, less the umask: users who share a folder share a group
MAX_ATTEMPTS = 2  # how often a cell may lose its process before it counts as failed


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[Callable[[], None]]:
    """Postpone both signals to calls of the returned function, and to the end of the block.

    The original handlers run then, so that their exceptions are raised there. Outside the main
    thread, where Python runs no handlers, nothing changes.
    """
    received: list[int] = []

    def deliver() -> None:
        """Run the handler of the first signal received, if any."""
        if received:
            number = received[0]
            received.clear()
            handler = handlers[signal.Signals(number)]
            if callable(handler):
                handler(number, None)

    if current_thread() is not main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # SIG_IGN and SIG_DFL need not be postponed: the first does nothing, the second ends the process
    # at once.
    handlers: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in SIGNALS}
    mine = [
        s
        for s in SIGNALS
        if callable(handlers[s]) and handlers[s] not in (signal.SIG_IGN, signal.SIG_DFL)
    ]
    for s in mine:
        signal.signal(s, note)
    try:
        yield deliver
    finally:
        for s in mine:
            signal.signal(s, handlers[s])
    deliver()


def run(
    suite: Path | str | Mapping[str, Any] | Suite,
    out: Path,
    executor: futures.Executor | None = None,
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
        share: run cells that no other bench in ``out`` runs, next to others that share it; returns
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
    requested = [group for group in groups if (group.scenario, group.method) in pairs]
    require_same(suite, out)
    with locked(out, share), writing(out):
        with waiting_lock(out / WRITING, GROUP):
            probe(out)
        max_jobs = (jobs or len(os.sched_getaffinity(0))) if share else sys.maxsize
        progress = _Progress(requested, out, suite.keep_models, share, watch, max_jobs)
        progress.read(groups, retry)
        try:
            if any(progress.todo(group) for group in requested):
                _drive(progress, executor, jobs)
        finally:
            with waiting_lock(out / WRITING, GROUP):
                if share:
                    progress.reread(groups)
                bench = collect(suite, size, groups, progress.verdicts, out)
                save(bench)
    if share:
        with suppress(LockedError), locked(out):  # the last of them
            replace(progress, share=False).read(groups, retry=False)
    return bench


def _drive(progress: "_Progress", executor: futures.Executor | None, jobs: int | None) -> None:
    with postponed() as deliver:
        if executor is not None:
            progress.run(executor, deliver)
            return
        pool = ProcessPool(jobs)
        try:
            progress.run(pool, deliver)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


@dataclass
class _Progress:
    """Progress of the requested groups of a bench.

    ``max_jobs``: submitted at a time; next to other benches no more than there are processes, so
    that a cell that waits can be taken by another.
    """

    groups: Sequence[Group]
    folder: Path
    keep_models: bool
    share: bool
    watch: Watch | None
    max_jobs: int
    verdicts: dict[Path, JobState] = field(default_factory=dict)
    _jobs: dict[futures.Future[Failure | None], Cell] = field(default_factory=dict)
    _lost: dict[Path, int] = field(default_factory=dict)

    def read(self, groups: Sequence[Group], retry: bool) -> None:
        """Read the state of all cells of the bench from their folders; ``retry``: ignore requested
        cells' failures.
        """
        retried = (
            {cell.folder for group in self.groups for cell in group.cells()} if retry else set()
        )
        cells = {cell.folder: cell for group in groups for cell in group.cells()}
        for cell in cells.values():
            folder = safe_path(self.folder, cell.folder)
            if cell.folder in retried:
                clear_failure(folder)
            self._update(cell)

    def reread(self, groups: Sequence[Group]) -> None:
        """Read what other benches have done since; failures that are not stored are kept."""
        previous = dict(self.verdicts)
        self.read(groups, retry=False)
        for folder, verdict in self.verdicts.items():
            if not verdict.settled and folder in previous:
                self.verdicts[folder] = previous[folder]

    def todo(self, group: Group) -> list[Cell]:
        """Return the cells of a group that are ready and have not been submitted."""
        submitted = {cell.folder for cell in self._jobs.values()}
        ready = {
            c.folder: c for c in group.ready(self.verdicts) if not self.verdicts[c.folder].settled
        }
        return [cell for folder, cell in ready.items() if folder not in submitted]

    def run(self, executor: futures.Executor, deliver: Callable[[], None]) -> None:
        """Keep the executor busy until all cells settle; ``deliver`` raises on an interrupt."""
        try:
            self._submit(executor)
            self._show()
            while self._jobs or any(self.todo(group) for group in self.groups):
                finished, _ = futures.wait(
                    self._jobs, timeout=POLL_SECONDS, return_when=futures.FIRST_COMPLETED
                )
                if not self._jobs:
                    sleep(POLL_SECONDS)
                deliver()
                for job in finished:
                    self._settle(self._jobs.pop(job), job)
                self._submit(executor)
                self._show()
        finally:
            for job in list(self._jobs):
                job.cancel()

    def _submit(self, executor: futures.Executor) -> None:
        """Submit ready cells, except those that another process is running."""
        for cell in (cell for group in self.groups for cell in self.todo(group)):
            if len(self._jobs) >= self.max_jobs:
                return
            if in_use(self.folder / cell.folder):
                continue
            self._update(cell)  # another process may have ended it
            if not self.verdicts[cell.folder].settled:
                config = cell.config
                tree = {**config.tree(), "track": config.track}
                data = (config.data,) if isinstance(config.data, InMemory) else ()
                job = executor.submit(work, tree, str(self.folder / cell.folder), *data)
                self._jobs[job] = cell

    def _settle(self, cell: Cell, job: futures.Future[Failure | None]) -> None:
        """Determine the outcome of a cell; a lost process is replaced once."""
        try:
            failure = job.result()
        except (futures.BrokenExecutor, futures.CancelledError) as fault:
            raise WorkerError(
                f"the executor is gone ({type(fault).__name__}); start again to continue"
            ) from fault
        except Exception as fault:
            self._lost[cell.folder] = self._lost.get(cell.folder, 0) + 1
            if self._lost[cell.folder] < MAX_ATTEMPTS:
                return
            failure = Failure.from_exception(fault)
        if failure and failure.code == LockedError.code:
            return  # another process has taken it: ask again until it ends
        if failure:
            self._fail(cell, failure)
        else:
            self._update(cell)
            if not self.verdicts[cell.folder].settled:
                reason = (
                    "its worker reports it as finished, but nothing is here; give an --out on "
                    "storage that all share"
                )
                self._fail(cell, Failure(1, reason, temporary=True))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        if self.share:
            self._update(cell)
            if self.verdicts[cell.folder].state == "finished":  # by another bench, meanwhile
                return
        failure = replace(failure, reason=failure.reason.replace(f"{self.folder}/", ""))
        if not failure.temporary:
            store_failure(self.folder / cell.folder, failure)
        self.verdicts[cell.folder] = JobState("failed", failure)

    def _update(self, cell: Cell) -> None:
        verdict = read_state(self.folder / cell.folder, cell.config)
        if verdict.state == "finished" and not self.share:  # else another may be reading it
            tidy(self.folder / cell.folder, self.keep_models)
        self.verdicts[cell.folder] = verdict

    def _show(self) -> None:
        if self.watch:
            self.watch(self.groups, self.verdicts)
