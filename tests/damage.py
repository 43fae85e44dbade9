"""Damage to an input: of its bytes, and the positions in its tree."""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that damages bytes: flips bits, cuts or extends the end, drops or overwrites a
    piece.
    """
    offset, length = draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(1, 40))
    new, operation = draw(st.binary(min_size=1, max_size=40)), draw(st.integers(0, 5))

    def damage(content: bytes) -> bytes:
        index = int(offset * len(content))
        return (
            content[:index] + bytes([content[index] ^ (1 << length % 8)]) + content[index + 1 :]
            if content
            else new,
            content[:index],
            content + new,
            content[:index] + content[index + length :],
            content[:index] + new + content[index + len(new) :],
            content[:index] + new + content[index:],
        )[operation]

    return damage


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every position in a nested value, except the whole."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))
