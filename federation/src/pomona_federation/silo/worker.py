"""A silo's worker: ``python -m pomona_federation.silo.worker FD KIT``, started by the silo's node.

It imports PyTorch, Flower and Pomona once, and forks a process for every message, which answers it
and ends. Node and worker share a pair of sockets, FD on this side; each message is a file in
memory, whose descriptor is passed on. When the node ends, the pair closes and this process ends
too.

A process with threads, or with CUDA started, cannot be forked safely. So this one starts no thread,
and ends itself, to be started again, if it finds one. Everything beyond imports that a message
needs happens in the child, including CUDA.
"""

import gc
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pomona_federation.silo.settings import use_kit
from pomona_federation.supervision.supervisor import backoff, die_with_parent

FORGETFUL = "--keep-no-data"
POLL = 2.0  # seconds between looks at the kept data while no message comes
TASKS = Path("/proc/self/task")
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # jemalloc within pyarrow starts a thread on import, although pyarrow allocates by mimalloc
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
APP = "pomona_federation.flower_apps"  # by name, as Flower itself loads an app
MODULES = (
    "cryptography.hazmat.backends.openssl",
    "flwr.supercore.inflatable.inflatable_utils",
    APP,
    "pomona.models.compatibility",
    "pomona.models.losses",
    "pomona.models.mlp",
    "pomona_federation.agreed_config",
    "pomona_federation.cross_evaluation",
    "pomona_federation.silo.client_app",
    "pomona_federation.silo.survey_answers",
    "torch.utils._device",
)
REQUEST, REPLY, FAILURE = b"?", b"!", b"x"  # what comes with a file, or instead of one
FIRST_DELAY, LONGEST_DELAY = 0.2, 60.0  # before a restart, doubled by each failure since an answer
IDLE_SECONDS = 600.0  # seconds without a message after which the process ends


# The node's side.


@dataclass
class Worker:
    """The worker process, which begins with a message, ends after a while without one, and which
    the kernel ends with this one.

    Args:
        command: starts it, given the descriptor of its socket.
        env: of the process; its output goes to this one's.
    """

    command: Callable[[int], Sequence[str]]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    _link: socket.socket | None = None
    _failures: int = 0
    _next: float = 0.0  # when it may be started again
    _used: float = 0.0  # when the last message was answered

    @classmethod
    def for_kit(cls, kit: Path) -> "Worker":
        """The worker of a silo's kit."""
        return cls(lambda descriptor: command(descriptor, kit), {**os.environ, **ONE_THREAD})

    def rest(self) -> None:
        """End the process, and with it its memory, if the last message is long enough ago."""
        self._notice_exit()
        if self.process and time.monotonic() - self._used > IDLE_SECONDS:
            self.process.kill()
            self._stop()

    def request(self, frames: Sequence[bytes], node: int) -> list[bytes] | None:
        """The answer to a message; None if a process has ended without one."""
        self._notice_exit()
        if not self.process:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._launch()
        assert self.process, "it has been started"
        assert self._link, "with its socket"
        try:
            send(self._link, REQUEST, [*frames, str(node).encode()])
            answer = receive(self._link)
            if answer is not None:
                self._failures = 0
            return answer
        except (OSError, EOFError):  # it has ended, or is just about to
            self.process.kill()
            self._handle_exit()
            return None
        finally:
            self._used = time.monotonic()

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._link = ours
            passed = theirs.fileno()
            self.process = subprocess.Popen(
                self.command(passed), env=dict(self.env), pass_fds=[passed]
            )

    def _notice_exit(self) -> None:
        if self.process and self.process.poll() is not None:
            self._handle_exit()

    def _stop(self) -> int:
        assert self.process
        if self._link:
            self._link.close()
        code, self.process = self.process.wait(), None
        return code

    def _handle_exit(self) -> None:
        code = self._stop()
        self._failures += 1
        delay = backoff(self._failures, FIRST_DELAY, LONGEST_DELAY)
        self._next = time.monotonic() + delay
        print(  # noqa: T201 - the process's log
            f"the worker ended ({code}); it starts again in {delay:g} s",
            file=sys.stderr,
            flush=True,
        )


def send(link: socket.socket, tag: bytes, frames: Sequence[bytes]) -> None:
    """Pass parts on, in a file in memory. Raises OSError if the other side has ended."""
    file = os.memfd_create("message")
    try:
        write(file, frames)
        socket.send_fds(link, [tag], [file])
    finally:
        os.close(file)


def receive(link: socket.socket) -> list[bytes] | None:
    """The parts that the other side has passed on; None for none.

    Raises EOFError if it has ended.
    """
    tag, files, _, _ = socket.recv_fds(link, 1, 1)
    if not tag:
        raise EOFError
    try:
        return read(files[0]) if files else None
    finally:
        for file in files:
            os.close(file)


def write(file: int, frames: Sequence[bytes]) -> None:
    """Write parts into an empty file, each after its length."""
    with os.fdopen(os.dup(file), "wb") as stream:
        for frame in frames:
            stream.write(len(frame).to_bytes(8, "little"))
            stream.write(frame)


def read(file: int) -> list[bytes]:
    """The parts in a file in memory. Raises EOFError if it ends within one."""
    frames, offset = [], 0
    while size := os.pread(file, 8, offset):
        length = int.from_bytes(size, "little")
        frame = bytearray()
        while len(frame) < length:
            if not (chunk := os.pread(file, length - len(frame), offset + 8 + len(frame))):
                raise EOFError
            frame += chunk
        frames.append(bytes(frame))
        offset += 8 + length
    return frames


# The worker's side.


def command(descriptor: int, kit: Path, *options: str) -> list[str]:
    """The command line of a node's worker; it keeps the kit's data."""
    return [
        sys.executable,
        "-m",
        "pomona_federation.silo.worker",
        str(descriptor),
        str(kit),
        *options,
    ]


def obstacle() -> str:
    """Why this process cannot be forked safely; empty if it can."""
    threads = len(list(TASKS.iterdir())) if TASKS.is_dir() else threading.active_count()
    if threads > 1:
        return f"the worker has {threads} threads"
    torch = sys.modules.get("torch")
    return "the worker has started CUDA" if torch and torch.cuda.is_initialized() else ""


@dataclass
class Forker:
    """Forks a process for each message.

    Args:
        link: to the node.
        answer: called in the child with the parts of a message; returns those of the reply.
        refresh: called between messages; children inherit what it loads into memory.
    """

    link: socket.socket
    answer: Callable[[list[bytes]], list[bytes]]
    refresh: Callable[[], None] = lambda: None
    _parent: int = field(default_factory=os.getpid)

    def serve(self) -> NoReturn:
        """Answer messages. Raises SystemExit if the node has ended, or if forking is not safe."""
        while True:
            self.refresh()
            if reason := obstacle():
                sys.exit(f"error[PROCESS]: {reason}, and is restarted")
            if select.select([self.link], [], [], POLL)[0]:
                self._serve()

    def _serve(self) -> None:
        """Have a child answer a message, and pass its answer on only if it has ended well."""
        try:
            message = receive(self.link)
        except (EOFError, ConnectionError):
            sys.exit(0)
        assert message, "the node sends messages alone"
        reply = os.memfd_create("reply")
        if not (pid := os.fork()):
            self._child(message, reply)
        del message
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            print(  # noqa: T201 - the process's log
                f"process {pid} of a message was ended by signal {os.WTERMSIG(status)}", flush=True
            )
        with suppress(ConnectionError):  # the node has ended: the next look at the link finds it
            if os.waitstatus_to_exitcode(status):
                socket.send_fds(self.link, [FAILURE], [])
            else:
                socket.send_fds(self.link, [REPLY], [reply])
        os.close(reply)

    def _child(self, message: list[bytes], reply: int) -> NoReturn:
        code = 1
        try:
            die_with_parent()
            # the parent ended before this child could ask to be ended with it
            if os.getppid() != self._parent:
                os._exit(1)
            self.link.close()
            write(reply, self.answer(message))
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def preload() -> None:
    """Import the modules that messages need, complete settings and the card's template, and limit
    PyTorch to one thread, as each message does.
    """
    list(map(import_module, MODULES))
    import torch

    from pomona.config import Config
    from pomona.personal import model_card

    Config()  # pydantic completes settings when they are first used
    model_card.template()
    torch.set_num_threads(1)


def answered(message: list[bytes]) -> list[bytes]:
    """The installed ClientApp's reply to a message; the last part is the node's id."""
    from pomona_federation.flower_internals import run_client_app

    return run_client_app(sys.modules[APP].client_app, message[:-1], int(message[-1]))


def main() -> None:
    """Fork for every message until the node ends."""
    die_with_parent()
    descriptor, kit = int(sys.argv[1]), Path(sys.argv[2])
    os.umask(0o077)
    preload()
    from pomona_federation.silo import kept_data

    gc.collect()
    gc.freeze()  # keep memory shared with the children: garbage collection would write into it
    cache = None if FORGETFUL in sys.argv[3:] else kept_data.DataCache(kit)
    kept_data.use(cache)
    use_kit(kit)

    def refresh() -> None:
        if cache and cache.refresh():
            if obstacle():  # a reader has left a thread: continue without it
                os.set_inheritable(descriptor, True)
                os.execv(sys.executable, command(descriptor, kit, FORGETFUL))  # noqa: S606 - this very program
            gc.collect()
            gc.freeze()

    Forker(socket.socket(fileno=descriptor), answered, refresh).serve()


if __name__ == "__main__":
    main()
