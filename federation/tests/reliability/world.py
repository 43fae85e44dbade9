"""One run in this process: its folder, the command line, its output, and the injected faults."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass

import injections as inject
import pytest
from runs import BASE, outcome

from pomona.cli import main
from pomona.storage.run_status import read_status


def do_nothing(_):
    """Do nothing."""


class World:
    """A folder with a run, the command line, and its last output."""

    def __init__(self, folder, capsys, patch, wholes):
        self.folder = folder
        self.out = folder / "run"
        self._capsys = capsys
        self.patch = patch
        self._wholes = wholes
        self.stderr, self.original = "", {}

    def call(self, *arguments):
        """Run a command and return its exit code; its standard error is kept, as one line."""
        self._capsys.readouterr()
        try:
            main([*arguments])
            code = 0
        except SystemExit as end:
            code = end.code
        self.stderr = " ".join(self._capsys.readouterr().err.split())
        return code

    def run(self, arguments, *options, base=BASE, out=None):
        """Train, with settings as words after the method's name."""
        method, *settings = (w.replace("{here}", str(self.folder)) for w in arguments)
        return self.call(
            "run", method, *base, *settings, "--no-report", *options, "--out", str(out or self.out)
        )

    def undisturbed(self, arguments, fault=do_nothing):
        """The outcome of an undisturbed run with these settings."""
        key = (arguments, fault)
        if key not in self._wholes:
            with self.patch.context() as patch:
                fault(patch)
                folder = self.folder / "whole"
                assert self.run(arguments, out=folder) == 0
                self._wholes[key] = results(folder)
                shutil.rmtree(folder)
        return self._wholes[key]

    def interrupt(self, arguments, number):
        """Leave a run that was interrupted before round ``number`` was committed."""
        with self.patch.context() as patch:
            inject.stopped(number)(patch)
            assert self.run(arguments) == 130
        assert read_status(self.out).state == "interrupted"


@dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        id: its number in the table of scenarios, and what is done.
        code: of the command.
        arguments: the run's method and settings.
        phrases: required on standard error.
        prepare: writes the contents of the folder before the command.
        fault: put into the process while the command runs.
        check: what must hold afterwards.
        options: of the command.
        base: settings before ``arguments``.
    """

    id: str
    code: int
    arguments: tuple[str, ...]
    phrases: tuple[str, ...]
    prepare: Callable[[World], object]
    fault: Callable[[pytest.MonkeyPatch], object]
    check: Callable[[World, "Row"], None]
    options: tuple[str, ...]
    base: tuple[str, ...]


def results(folder):
    """The outcome of a run: tensors, evaluations, and rounds without remarks on refused uplinks."""
    tensors, events = outcome(folder)
    comparable = [e for e in events if e["event"] in ("round", "evaluation", "unseen", "final")]
    return tensors, [{k: v for k, v in e.items() if k != "refused"} for e in comparable]


def files(folder):
    """Every file with its content and time."""
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}
