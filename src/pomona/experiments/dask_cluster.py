"""A Dask cluster as the executor of a bench (extra ``dask``)."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from pomona.core.errors import ConfigError, StorageError, with_extra
from pomona.storage.atomic_io import writing

PATIENCE = 10.0  # seconds


@contextmanager
def cluster(address: str, out: Path) -> Iterator[Executor]:
    """Yield an executor for the scheduler at ``tcp://host:port``.

    Workers need this package, the data sets, and the folder ``out`` at the same path, on shared storage. Give each one
    computing thread (``dask worker --nthreads 1``).

    Raises:
        ConfigError: the extra is not installed, or the address does not respond.
        StorageError: a worker cannot access ``out``.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ConfigError(f"--executor needs Dask; {with_extra('dask')}") from None
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as fault:
        raise ConfigError(
            f"no Dask scheduler answers at {address} ({fault}); start one, or correct --executor"
        ) from None
    with client:
        if not client.ncores():
            raise ConfigError(f"the Dask scheduler at {address} has no workers; start some: dask worker {address}")
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=out) as token:
                blind = [name for name, seen in client.run(_sees, token.name).items() if not seen]
        if blind:
            raise StorageError(f"{', '.join(blind)}: does not see {out.absolute()}; give an --out that all share")
        executor: Executor = client.get_executor(pure=False, retries=0)
        yield executor


def _sees(path: str) -> bool:
    return Path(path).exists()
