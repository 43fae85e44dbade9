"""Fenced code blocks of the documents, and how to run them.

A block's first line gives its language: ```` ```sh ````, ``python`` and ``toml`` blocks are run. A
comment in the line above may say why one is not: ``<!-- elsewhere: REASON -->`` (never run here),
``slow: REASON`` (run by ``pytest -m slow``), ``data: REASON`` (run if POMONA_DATA is set),
``slow-data: REASON`` (both), or ``needs: MODULE`` (run if it is installed). So may a bold line above
it that readers see: ``**On A:**``, in the guide to a federation, is for another machine. A toml block contains a run's settings unless the
comment is ``file``; it is saved under the name in its first line, ``# NAME.toml``.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from command_line import command
from pomona.config import resolve

FENCE = re.compile(
    r"(?:^\*\*([^*\n]+):\*\*\n\n)?(?:^<!-- ([^\n]*?) -->\n)?"
    r"^```(\w+)\n(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
RUN = ("sh", "python", "toml")
CONDITIONS = ("elsewhere", "slow", "data", "slow-data", "needs")
SHELL = re.compile(r"[|<>$&;*(]")


@dataclass(frozen=True)
class Block:
    """A block: its position, its language, the reason not to run it (if any), and its text."""

    position: str
    language: str
    condition: str
    reason: str
    text: str


def blocks(path: Path) -> list[Block]:
    """The runnable blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    result = []
    for match in FENCE.finditer(text):
        heading, note, language, body = match.groups()
        if heading and not note:
            note = f"elsewhere: {heading[0].lower()}{heading[1:]}"
        condition, _, reason = (note or "").partition(":")
        position = f"{path.name}, line {text.count(chr(10), 0, match.start(3)) + 1}"
        if language in RUN:
            result.append(Block(position, language, condition.strip(), reason.strip(), body))
    return result


@dataclass
class Runner:
    """Runs blocks in sequence in the current folder; Python blocks share their names."""

    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, block: Block) -> None:
        """Run a block. Raises AssertionError, or the exception of its code."""
        getattr(self, f"_{block.language}")(block)

    def _python(self, block: Block) -> None:
        exec(compile(block.text, block.position, "exec"), self.names)

    def _toml(self, block: Block) -> None:
        tree = tomllib.loads(block.text)
        if block.condition != "file":
            resolve(tree)
        if name := re.match(r"# (\S+\.toml)\n", block.text):
            Path(name[1]).write_text(block.text)

    def _sh(self, block: Block) -> None:
        for line in block.text.replace("\\\n", " ").splitlines():
            arguments = shlex.split(line, comments=True)
            if arguments[:1] == ["pomona"] and not SHELL.search(line.partition(" #")[0]):
                # in this process, without a second start of PyTorch
                code = command(*arguments[1:])
            else:
                code = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", line],
                    check=False,
                    env=self._surroundings(),
                    timeout=900,
                ).returncode
            assert code == 0, f"{block.position}: {line} ends with {code}"

    def _surroundings(self) -> dict[str, str]:
        """Environment variables of a shell with Pomona installed."""
        python = str(Path(sys.executable).parent)
        return {**os.environ, "PATH": f"{python}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
