"""Workers that are actors of a Ray cluster (extra ``ray``), with models in its object store.

Each model that several clients receive is stored once, by this process, and fetched once by every
node with an actor that needs it; the node's actors read it from shared memory. Actors have no
copies of the data set either. Nothing depends on a folder that the nodes share.
"""

import os
import secrets
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.errors import ConfigError, WorkerError, with_extra
from pomona.core.registry import importable, own_code_folders
from pomona.core.state import Lazy
from pomona.federation.exchange import Groups
from pomona.federation.transport import Make
from pomona.federation.workers import DownlinkPart, result_or_exception
from pomona.methods.base import Copies, Rows
from pomona.storage.row_bank import MemoryBank

P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_CLUSTER = "ray"
"""As an address: the cluster that RAY_ADDRESS names, else a new one on this machine."""
CONNECT_TIMEOUT = 10.0  # seconds, for an address
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
PATIENCE = 300.0  # seconds, until an actor has found a place and read its part
NOTICE_AFTER = 5.0  # seconds, after which a user is told what a run waits for
Versions = Callable[[], dict[str, str]]


@contextmanager
def connected(cluster: str, cores: int) -> Iterator[None]:
    """Connect this process to the Ray cluster at ``host:port`` or to ``DEFAULT_CLUSTER``, which has
    ``cores`` where it is started here; a connection that exists already is used.

    Raises:
        ConfigError: the extra is not installed, or the address does not respond.
    """
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    address = cluster if cluster != DEFAULT_CLUSTER else os.environ.get("RAY_ADDRESS") or "local"
    with _environment(address == "local"):
        with _own_handler():
            try:
                if address == "local":
                    _start(cores)
                else:
                    _join(address)
            except Exception as fault:  # Ray raises this class itself
                raise ConfigError(
                    f"no Ray cluster answers at {address} ({_first_line(fault)}); start one (ray "
                    "start --head), or correct cluster"
                ) from None
        ray.util.register_serializer(Tensor, serializer=_packed, deserializer=_viewed)
        try:
            yield
        finally:
            ray.util.deregister_serializer(Tensor)
            ray.shutdown()


@contextmanager
def _environment(new: bool) -> Iterator[None]:
    """Set Ray's variables for a connection; ``new``: to a cluster that this process starts."""
    variables = _variables()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if new:
        # Otherwise Ray writes a token for all clusters to the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", _token())
        os.environ.setdefault("RAY_worker_niceness", "0")  # else actors give way to all other work
    try:
        yield
    finally:
        for name in _variables():  # Ray itself sets more
            del os.environ[name]
        os.environ.update(variables)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


@cache
def _token() -> str:
    """Return the token of all clusters that this process starts: Ray remembers the first."""
    return secrets.token_hex()


def _join(address: str) -> None:
    host, _, port = address.rpartition(":")
    # Ray would try for minutes
    socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    _ray().init(address=address, **QUIET)


def _start(cores: int) -> None:
    """Start a cluster that listens on loopback alone, to processes that know its token."""
    ray = _ray()
    constants = ray._private.ray_constants
    enabled = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # as on macOS
    try:
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **QUIET)
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled


def cores() -> int:
    """Return the number of cores of the connected cluster."""
    return int(_ray().cluster_resources().get("CPU", 1))


def memory() -> list[int]:
    """Return the bytes of memory of each node of the connected cluster, as Ray counts them: what
    was free when it began.
    """
    resources = ("memory", "object_store_memory")
    return [
        int(sum(node["Resources"].get(resource, 0) for resource in resources)) for node in _nodes()
    ]


def _nodes() -> Iterator[dict[str, Any]]:
    return filter(itemgetter("Alive"), _ray().nodes())


@contextmanager
def reserved(workers: int, note: Callable[[str], None]) -> Iterator[Any]:
    """Yield as many cores of the connected cluster, all or none, so that two runs do not wait for
    each other's; ``note`` is told if others have them.

    Raises:
        ConfigError: others have them for ``PATIENCE`` seconds.
    """
    ray = _ray()
    group = ray.util.placement_group([{"CPU": 1}] * workers)
    try:
        if not group.wait(NOTICE_AFTER):
            free = f"{int(ray.available_resources().get('CPU', 0))} of its {cores()} are free"
            note(f"waiting for {workers} cores of the Ray cluster: {free}")
            if not group.wait(PATIENCE):
                raise ConfigError(
                    f"the Ray cluster has not given {workers} cores in {PATIENCE:.0f} s ({free}); "
                    "set workers to fewer, or start again when other runs have ended"
                )
        yield group
    finally:
        ray.util.remove_placement_group(group)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(f"cluster needs Ray; {with_extra('ray')}") from None
    return ray


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, handler)


class Jobs(Executor):
    """Runs jobs on the connected cluster, one on each of its ``cores``; none is repeated."""

    def __init__(self) -> None:
        self.cores = cores()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job of plain values."""
        task = _ray().remote(num_cpus=1, max_retries=0)(_run)
        job: Future[T] = task.remote(own_code_folders(), fn, args, kwargs).future()
        return job


def _run(folders: Sequence[Path], function: Callable[..., T], args: Any, kwargs: Any) -> T:
    for folder in folders:
        importable(folder)
    return function(*args, **kwargs)


def on_each_node(function: Callable[..., T], *args: Any) -> list[tuple[str, T]]:
    """Return each node's address with the function's result there.

    Raises:
        ConfigError: a node cannot call it.
    """
    ray, pending = _ray(), []
    task = ray.remote(num_cpus=0)(function)
    for node in _nodes():
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node["NodeID"], False
        )
        pinned = task.options(scheduling_strategy=strategy)
        pending.append((node["NodeManagerAddress"], pinned.remote(*args)))
    return [(name, _answer(name, answer)) for name, answer in pending]


def _answer(node: str, answer: Any) -> Any:
    ray = _ray()
    try:
        return ray.get(answer)
    except ray.exceptions.RayError as fault:
        reason = _first_line(getattr(fault, "cause", None) or fault)
        raise ConfigError(
            f"the cluster's node {node} does not answer ({reason}); install the same Pomona on all"
        ) from None


def require_same(node: str, remote: Mapping[str, str], local: Mapping[str, str]) -> None:
    """Raise ConfigError unless a node has the versions of this machine."""
    differing = [
        f"{name} {remote.get(name, 'not at all')}, this machine {local.get(name, 'not at all')}"
        for name in sorted(remote.keys() | local.keys())
        if remote.get(name) != local.get(name)
    ]
    if differing:
        raise ConfigError(
            f"the cluster's node {node} has {'; '.join(differing)}: its results would differ; "
            "install the same on all nodes"
        )


class Actors:
    """Starts actors on cores that are ``reserved``; ``versions`` must give the same there."""

    def __init__(self, make: Make, versions: Versions, group: Any) -> None:
        self._make, self._versions, self._versions_here = _ray().put(make), versions, versions()
        strategy = _ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        self._actor = _ray().remote(num_cpus=1, max_restarts=0, scheduling_strategy=strategy)(
            _Served
        )

    def start(self, groups: Groups) -> "RayWorker":
        """Start an actor for groups of clients."""
        actor = self._actor.remote(own_code_folders())
        versions = actor.node_versions.remote(self._versions)
        return RayWorker(
            actor, self._versions_here, versions, actor.start.remote(self._make, groups)
        )

    def deal(self, received: DownlinkPart) -> Callable[[Sequence[int]], DownlinkPart]:
        """Return what a worker is sent of a downlink: models for several clients by reference, and
        of those for one client each its clients' own.
        """
        dealt = {name: _referred(rows) for name, rows in received.items()}
        return lambda positions: {name: _subset(rows, positions) for name, rows in dealt.items()}


class RayWorker:
    """An actor; ``versions`` and ``started`` refer to its answers to these first two requests."""

    def __init__(
        self, actor: Any, local_versions: Mapping[str, str], versions: Any, started: Any
    ) -> None:
        self._actor, self._versions_here, self._pending = actor, local_versions, list[Any]()
        self._first: tuple[Any, Any] | None = (versions, started)

    def send(self, function: Callable[..., Any], *args: Any) -> None:
        """Send a request; tensors that would be read from files of this machine are read here."""
        loaded = [dict(a) if isinstance(a, Lazy) else a for a in args]
        self._pending.append(self._actor.call.remote(function, *loaded))

    def receive(self) -> Any:
        """Return the next answer."""
        ray = _ray()
        try:
            if self._first:
                versions, started = self._first
                node, remote = ray.get(versions, timeout=PATIENCE)
                require_same(node, remote, self._versions_here)
                if fault := ray.get(started, timeout=PATIENCE):
                    return fault
                self._first = None
            return ray.get(self._pending.pop(0))
        except (ray.exceptions.RayError, ConnectionError) as fault:
            raise WorkerError(
                f"was lost ({_first_line(self._fate(fault))}); check that its node is up, with "
                "Pomona and enough memory"
            ) from fault

    def _fate(self, fault: Exception) -> Exception:
        """Wait until Ray knows what has become of an actor that does not answer: until then it
        would place others on a node that is gone.
        """
        ray, deadline = _ray(), monotonic() + PATIENCE
        while isinstance(fault, ray.exceptions.ActorUnavailableError) and monotonic() < deadline:
            sleep(1)
            try:
                ray.get(self._actor.call.remote(type))
            except ray.exceptions.RayError as next_fault:
                fault = next_fault
            else:
                break
        return fault

    def close(self) -> None:
        """End the actor."""
        _ray().kill(self._actor)


class _Served:
    """In an actor: the runtime of its clients."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            importable(folder)
        torch.set_num_threads(1)
        _ray().util.register_serializer(Tensor, serializer=_packed, deserializer=_copied)

    def node_versions(self, versions: Versions) -> tuple[str, dict[str, str]]:
        return _ray().util.get_node_ip_address(), versions()

    def start(self, make: Make, groups: Groups) -> Exception | None:
        self._clients = result_or_exception(make, groups)
        return self._clients if isinstance(self._clients, Exception) else None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return result_or_exception(function, self._clients, *args)


class StoreBank(MemoryBank):
    """References to rows in the object store: put by one process, and read by all."""

    def put(self, row: Tensor) -> int:
        """As ``RowBank``."""
        number = next(self._numbers)
        self._rows[number] = _ray().put(row)
        return number

    def row(self, number: int) -> Tensor:
        """As ``RowBank``."""
        row: Tensor = _fetched(self._rows[number])
        return row

    def __getitem__(self, index: Tensor) -> Tensor:
        """As ``RowBank``."""
        numbers = index.unique().tolist()
        rows = _fetched([self._rows[number] for number in numbers])
        return self._work.gather(index, dict(zip(numbers, rows, strict=True)).__getitem__)

    def only(self, index: Tensor) -> "StoreBank":
        """Return a bank of these numbers, to send to others."""
        bank = StoreBank()
        bank._rows = {number: self._rows[number] for number in index.unique().tolist()}
        return bank


@dataclass(frozen=True)
class _Stored:
    """A tensor in the object store: pickled as a reference, unpickled as the tensor."""

    reference: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetched, (self.reference,)


def _fetched(reference: Any) -> Any:
    return _ray().get(reference)


def _referred(rows: Rows | Copies) -> Rows | Copies:
    """Store the bank of rows that clients share."""
    if isinstance(rows, Copies) or (rows.index.dim() == 1 and len(rows.bank) > 1):
        return rows
    return Rows(cast(Tensor, _Stored(_ray().put(rows.bank))), rows.index)


def _subset(rows: Rows | Copies, positions: Sequence[int]) -> Rows | Copies:
    """Return the part of some receivers, without rows of no use to them."""
    subset = rows.select(positions)
    if isinstance(subset, Copies):
        return Copies(
            cast(StoreBank, subset.bank).only(subset.index), subset.index, subset.received
        )
    if isinstance(cast(object, subset.bank), _Stored):
        return subset
    used, index = subset.index.unique(return_inverse=True)
    return Rows(subset.bank[used], index)


def _packed(tensor: Tensor) -> Any:
    """Return a tensor's bytes as an array, which the store passes on without copies."""
    if tensor.is_meta:
        return tensor.shape, tensor.dtype, None
    bytes_ = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor.shape, tensor.dtype, bytes_


def _viewed(packed: tuple[torch.Size, torch.dtype, NDArray[np.uint8] | None]) -> Tensor:
    """Return the tensor in the store's memory, which must not be changed."""
    shape, dtype, bytes_ = packed
    if bytes_ is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is not writable
        return torch.from_numpy(bytes_).view(dtype).view(shape)


def _copied(packed: tuple[torch.Size, torch.dtype, NDArray[np.uint8] | None]) -> Tensor:
    """Return the tensor in memory of its own, for this process to keep beyond the connection."""
    return _viewed(packed).clone()


def _first_line(fault: BaseException) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0].rstrip(".")
