"""Run a bench: ask an executor for every cell that has no result, search first, and write the table."""

import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from pomona.core.errors import ConfigError, LockedError, WorkerError
from pomona.experiments.bench_results import Bench, collect, save
from pomona.experiments.grid import Cell, Group, plan
from pomona.experiments.job import Failure, JobState, forget, look, put_on_file, tidy, work
from pomona.experiments.process_pool import ProcessPool
from pomona.experiments.suite import Size, Suite, read_suite
from pomona.storage.atomic_io import own, probe, writing
from pomona.storage.lock import locked

Verdicts = Mapping[Path, JobState]
Watch = Callable[[Sequence[Group], Verdicts], None]
LOOK = 0.5  # seconds between looks at what people see, and at whether they want an end
LIVES = 2  # how often a cell may lose its process before it counts as failed


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[Callable[[], None]]:
    """Postpone both signals to the calls of the function that this gives, and to the end of the block.

    The signals' own handlers are run then, so that what they raise is raised there. Outside the main thread, where
    Python runs no handlers, nothing changes.
    """
    came: list[int] = []

    def heed() -> None:
        """Run the handler of the first signal that came, if one did."""
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

    # SIG_IGN and SIG_DFL need no postponing: the first does nothing, the second ends the process at once.
    before: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in SIGNALS}
    mine = [s for s in SIGNALS if callable(before[s]) and before[s] not in (signal.SIG_IGN, signal.SIG_DFL)]
    for s in mine:
        signal.signal(s, note)
    try:
        yield heed
    finally:
        for s in mine:
            signal.signal(s, before[s])
    heed()


def run(
    suite: Path | Mapping[str, Any] | Suite,
    out: Path,
    executor: Executor | None = None,
    *,
    size: Size = "cpu",
    scenarios: Collection[str] = (),
    methods: Collection[str] = (),
    jobs: int | None = None,
    retry: bool = False,
    watch: Watch | None = None,
) -> Bench:
    """Run a suite, or go on with it, and tabulate it.

    Every cell is a run folder of its own: finished ones are kept, one that was cut short goes on from its last
    committed round, one that failed is put on file with its reason while the others go on.

    A part of a suite is the whole bench of which fewer cells are asked for: in the results the others are what their
    folders hold, and wait where these hold nothing.

    Args:
        suite: the file, its tree, or the suite itself.
        out: folder of the bench; made if absent.
        executor: where cells run, one job each; processes of this machine if None, which import the caller's main
            module: guard it by ``if __name__ == "__main__"``. Jobs must see ``out`` and the data at the same paths.
        size: which of the suite's sizes.
        scenarios: the columns that are asked for; all if empty.
        methods: the rows that are asked for; all if empty.
        jobs: how many processes of this machine; one a core if None. Unused with an executor.
        retry: run cells again that have failed before, of those that are asked for.
        watch: called at the start, about twice a second and after each cell, with the groups asked for and verdicts.

    Returns:
        The results, as ``pomona.experiments.load(out)`` would read them again.

    Raises:
        ConfigError: a key or a value of the suite, or ``jobs``; nothing is run then.
        LockedError: another bench is at work in ``out``.
        StorageError: ``out`` cannot be written.
        WorkerError: the executor is gone. Start again to go on.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs = {jobs}: give 1 or more")
    suite = read_suite(suite)
    groups, pairs, out = plan(suite, size), suite.pairs(size, scenarios, methods), out.absolute()
    asked = [group for group in groups if (group.scenario, group.method) in pairs]
    with locked(out), writing(out):
        probe(out)
        course = _Course(asked, out, suite.keep_models, watch)
        course.read(groups, retry)
        try:
            if any(course.todo(group) for group in asked):
                _drive(course, executor, jobs)
        finally:
            bench = collect(suite, size, groups, course.verdicts, out)
            save(bench)
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
    """Progress of the groups of a bench that are asked for."""

    groups: Sequence[Group]
    out: Path
    keep_models: bool
    watch: Watch | None
    verdicts: dict[Path, JobState] = field(default_factory=dict)
    _jobs: dict[Future[Failure | None], Cell] = field(default_factory=dict)
    _lost: dict[Path, int] = field(default_factory=dict)

    def read(self, whole: Sequence[Group], retry: bool) -> None:
        """Read the state of all cells of the whole bench from their folders; ``retry``: less the failures asked for."""
        again = {cell.folder for group in self.groups for cell in group.cells()} if retry else set()
        cells = {cell.folder: cell for group in whole for cell in group.cells()}
        for cell in cells.values():
            folder = own(self.out, cell.folder)
            if cell.folder in again:
                forget(folder)
            self._look(cell)

    def todo(self, group: Group) -> list[Cell]:
        """The cells of a group that can be asked for now and have not been."""
        asked = {cell.folder for cell in self._jobs.values()}
        wanted = {c.folder: c for c in group.wanted(self.verdicts) if not self.verdicts[c.folder].settled}
        return [cell for folder, cell in wanted.items() if folder not in asked]

    def run(self, executor: Executor, heed: Callable[[], None]) -> None:
        """Keep the executor busy until every cell is settled; ``heed`` raises if somebody wants an end before."""
        try:
            for group in self.groups:
                self._ask(executor, group)
            self._show()
            while self._jobs:
                done, _ = wait(self._jobs, timeout=LOOK, return_when=FIRST_COMPLETED)
                heed()
                for job in done:
                    cell = self._jobs.pop(job)
                    self._settle(cell, job)
                    self._ask(executor, self._group(cell))
                self._show()
        finally:
            for job in list(self._jobs):
                job.cancel()

    def _ask(self, executor: Executor, group: Group) -> None:
        for cell in self.todo(group):
            job = executor.submit(work, cell.config.tree(), str(self.out / cell.folder))
            self._jobs[job] = cell

    def _settle(self, cell: Cell, job: Future[Failure | None]) -> None:
        """Find out what became of a cell; a lost process is made up for once."""
        try:
            failure = job.result()
        except (BrokenExecutor, CancelledError) as fault:
            raise WorkerError(f"the executor is gone ({type(fault).__name__}); start again to go on") from fault
        except Exception as fault:
            self._lost[cell.folder] = self._lost.get(cell.folder, 0) + 1
            if self._lost[cell.folder] < LIVES:
                return
            failure = Failure.of(fault)
        if failure and failure.code == LockedError.code:
            return  # a job of a bench that was cut short still works at it: ask again until it is through
        if failure:
            self._fail(cell, failure)
        else:
            self._look(cell)
            if not self.verdicts[cell.folder].settled:
                reason = "its worker says it is finished, but nothing is here; give an --out on storage that all share"
                self._fail(cell, Failure(1, reason, passing=True))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        failure = replace(failure, reason=failure.reason.replace(f"{self.out}/", ""))
        if not failure.passing:
            put_on_file(self.out / cell.folder, failure)
        self.verdicts[cell.folder] = JobState("failed", failure)

    def _look(self, cell: Cell) -> None:
        verdict = look(self.out / cell.folder, cell.config)
        if verdict.state == "finished":
            tidy(self.out / cell.folder, self.keep_models)
        self.verdicts[cell.folder] = verdict

    def _group(self, cell: Cell) -> Group:
        return next(g for g in self.groups if (g.scenario, g.method) == (cell.scenario, cell.method))

    def _show(self) -> None:
        if self.watch:
            self.watch(self.groups, self.verdicts)
