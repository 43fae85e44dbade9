"""What members send is judged in one place: whatever is wrong with it is a refusal, never the end of the server."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pomona.core.bounds import plain
from pomona.core.errors import PomonaError, ProtocolError, StorageError

logger = logging.getLogger("pomona")


@contextmanager
def foreign(*ours: type[Exception]) -> Iterator[None]:
    """Turn every fault of what follows into a ProtocolError of one harmless line, so that the server goes on.

    The server's own disk is nobody else's fault: StorageError passes, as do the kinds in ``ours``. What nobody has
    foreseen is told by its kind alone, since its text may hold anything that was sent; the server's log has all of it,
    as one line.
    """
    passing: tuple[type[Exception], ...] = (StorageError, *ours)
    try:
        yield
    except passing:
        raise
    except PomonaError as fault:
        raise ProtocolError(plain(str(fault))) from None
    except Exception as fault:  # of bytes that somebody else has made
        logger.warning("what was sent cannot be used: %s", plain("".join(traceback.format_exception(fault)), 4000))
        raise ProtocolError(
            f"what it sent cannot be used (a {type(fault).__name__}; the server's log has more)"
        ) from None
