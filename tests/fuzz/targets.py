"""What is attacked: each target makes inputs from valid ones, and has a function that reads one."""

from collections.abc import Callable
from dataclasses import dataclass

from guard import Act
from hypothesis import strategies as st
from worlds import World

Attack = tuple[st.SearchStrategy[bytes], Act]


@dataclass(frozen=True)
class Target:
    """One thing that reads what others have made.

    Attributes:
        name: what the input is and who reads it.
        examples: inputs in the gate, fewer where one costs more.
        attack: makes the inputs' strategy, and the function that reads one.
    """

    name: str
    examples: int
    attack: Callable[[World], Attack]


TARGETS: list[Target] = []


def target(name: str, examples: int = 100) -> Callable[[Callable[[World], Attack]], Callable[[World], Attack]]:
    """Add a target."""

    def add(attack: Callable[[World], Attack]) -> Callable[[World], Attack]:
        TARGETS.append(Target(name, examples, attack))
        return attack

    return add
