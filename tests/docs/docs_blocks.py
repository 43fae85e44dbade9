"""Fenced blocks of the documents, and how each is run.

A block's first line says what it is: ```` ```sh ````, ``python`` and ``toml`` blocks are run; after the language may stand
why one is not, as ``elsewhere: REASON`` (never run here), ``slow: REASON`` (by ``pytest -m slow``), or ``data: REASON``
(where POMONA_DATA is set), or ``slow-data: REASON`` (both). GitHub does not show it; what readers see is a line in bold
above a block, as in the guide to a federation. A toml block is a run's settings unless its first word is ``file``,
and is kept under the name in its first line, ``# NAME.toml``.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pomona.cli import main
from pomona.config import resolve

FENCE = re.compile(r"(?:^\*\*([^*\n]+):\*\*\n\n)?^```(\w+)[ \t]*([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = ("sh", "python", "toml")
HELD = ("elsewhere", "slow", "data", "slow-data")
SHELL = re.compile(r"[|<>$&;*(]")


@dataclass(frozen=True)
class Block:
    """One block: where it stands, in what language, why it is held back (if it is), its text, and the bold line above."""

    where: str
    language: str
    word: str
    reason: str
    text: str
    heading: str


def blocks(path: Path) -> list[Block]:
    """The blocks of a document that can be run, in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        heading, language, note, body = match.groups()
        word, _, reason = note.partition(":")
        where = f"{path.name}, line {text.count(chr(10), 0, match.start(2)) + 1}"
        if language in RUN:
            found.append(Block(where, language, word.strip(), reason.strip(), body, heading or ""))
    return found


@dataclass
class Runner:
    """Runs blocks one after the other in the current folder; Python blocks share their names."""

    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, block: Block) -> None:
        """Run a block. Raises AssertionError, or what its code raises."""
        getattr(self, f"_{block.language}")(block)

    def _python(self, block: Block) -> None:
        exec(compile(block.text, block.where, "exec"), self.names)

    def _toml(self, block: Block) -> None:
        tree = tomllib.loads(block.text)
        if block.word != "file":
            resolve(tree)
        if name := re.match(r"# (\S+\.toml)\n", block.text):
            Path(name[1]).write_text(block.text)

    def _sh(self, block: Block) -> None:
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["pomona"] and not SHELL.search(line.partition(" #")[0]):
                code = called(words[1:])  # as the command does, without a second start of PyTorch
            else:
                code = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", line], check=False, env=self._surroundings(), timeout=300
                ).returncode
            assert code == 0, f"{block.where}: {line} ends with {code}"

    def _surroundings(self) -> dict[str, str]:
        """The environment of a shell in which Pomona is installed."""
        python = str(Path(sys.executable).parent)
        return {**os.environ, "PATH": f"{python}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def called(words: list[str]) -> int:
    """The exit code of a command of pomona, run in this process."""
    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
