"""The attacked readers: each target makes inputs from valid ones, and has a function that reads
one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edits import TextFormat, Valid, inputs
from guard import Act
from hypothesis import strategies as st
from worlds import World

from pomona.cli import app

Attack = tuple[st.SearchStrategy[bytes], Act]


@dataclass(frozen=True)
class Target:
    """One reader of files or messages made by others.

    Attributes:
        name: what the input is and who reads it.
        examples: inputs in the gate, fewer if one costs more.
        attack: makes the inputs' strategy, and the function that reads one.
    """

    name: str
    examples: int
    attack: Callable[[World], Attack]


TARGETS: list[Target] = []


def target(
    name: str, examples: int = 4
) -> Callable[[Callable[[World], Attack]], Callable[[World], Attack]]:
    def add(attack: Callable[[World], Attack]) -> Callable[[World], Attack]:
        TARGETS.append(Target(name, examples, attack))
        return attack

    return add


def command(*arguments: object) -> None:
    """Run a command in this process."""
    try:
        app([str(argument) for argument in arguments], exit_on_error=False, print_error=False)
    except SystemExit as end:
        if end.code:
            raise


def file(
    world: World,
    source: Path,
    name: str,
    path: str,
    format_: TextFormat | None,
    act: Callable[[Path], object],
) -> Attack:
    """An attack on one file of a folder: its inputs, and the reader of the folder."""
    anew = world.copy(source, name)
    folder = anew()
    (path_,) = folder.glob(path)
    relative = path_.relative_to(folder)

    def written(data: bytes) -> object:
        folder = anew()
        (folder / relative).write_bytes(data)
        return act(folder)

    return inputs(Valid(path_.read_bytes(), format_)), written
