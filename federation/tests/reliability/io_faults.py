"""Every call that changes a file fails once, one a run, until none is left: of each command that
writes, and of a silo's and a server's round.

    python federation/tests/reliability/io_faults.py            # all writers; a minute to an hour
    python federation/tests/reliability/io_faults.py run backup # some
    python federation/tests/reliability/io_faults.py --every 25 # every 25th call of each
    python federation/tests/reliability/io_faults.py --rest     # from the call on all fail, as on a full disk

``io_faults.c``, which is compiled here and loaded before the C library, counts the calls open (for
writing), write, fsync, truncate, rename, link, unlink, rmdir, mkdir and chmod on paths in the
writer's folder, and lets one fail: a write after half of its bytes. So it reaches whatever goes
through the C library's functions, Python's files, SQLite's and Arrow's alike; not C's own buffered
files (``fwrite``), memory maps, and other processes. After each fault the writer must have ended
with a code and one line of error, or have gone on; given again, it must end with the files that it
ends with undisturbed.
"""

# ruff: noqa: T201 - a command
import argparse
import ctypes
import hashlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True)
class Writer:
    """What writes files.

    Attributes:
        act: writes, given the folder; returns an exit code.
        result: the bytes that must be the same after a fault and another try.
        retry: the second try, ``act`` by default.
        root: the folder in the folder whose calls fail.
    """

    act: Callable[[Path], int]
    result: Callable[[Path], bytes]
    retry: Callable[[Path], int] | None = None
    root: str = ""


def tree(*names: str, exclude: tuple[str, ...] = ()) -> Callable[[Path], bytes]:
    """The content of all files in these folders, without some by name."""

    def result(folder: Path) -> bytes:
        files = sorted(p for name in names for p in (folder / name).rglob("*") if p.is_file())
        digests = {
            str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in files
            if not any(p.match(pattern) for pattern in exclude)
        }
        return json.dumps(digests, indent=1).encode()

    return result


def pomona_command(*arguments: str) -> Callable[[Path], int]:
    """A command, with ``{}`` for the folder."""

    def act(folder: Path) -> int:
        from command_line import command

        return command(*(argument.replace("{}", str(folder)) for argument in arguments))

    return act


def run_command(*settings: str) -> Callable[[Path], int]:
    from runs import BASE

    small = [w for w in BASE if not w.startswith("rounds")]
    return pomona_command("run", *settings[:1], *small, "rounds=2", "workers=1", *settings[1:], "--no-report", "--resume", "--out", "{}/run")  # fmt: skip


def ran(folder: Path) -> bytes:
    """Models, predictions and events of a run."""
    from runs import outcome

    tensors, events = outcome(folder / "run")
    files = tree("run/models", "run/partition.json")(folder)
    return json.dumps([tensors, events, files.decode()], sort_keys=True).encode()


def unpacked(folder: Path) -> bytes:
    """The members of a backup, by name."""
    with tarfile.open(folder / "kit.backup") as tar:
        members = {m.name: hashlib.sha256(tar.extractfile(m).read()).hexdigest() for m in tar if m.isfile()}  # fmt: skip
    members.pop("backup.json")  # has the time
    return json.dumps(members, sort_keys=True).encode()


def writers(folder: Path) -> dict[str, tuple[Path, Writer]]:
    """All writers, each with the folder that it starts from."""
    from runs import PRIVATE
    from worlds import World

    world = World(folder)
    exchanges = world.exchanges  # a federation has run
    initial = {name: folder / f"begin-{name}" for name in ("empty", "run", "kits", "backup", "silo", "server")}  # fmt: skip
    initial["empty"].mkdir()
    shutil.copytree(world.run, initial["run"] / "run")
    shutil.copytree(world.federation.kits, initial["kits"] / "kits", ignore=shutil.ignore_patterns("arrivals"))  # fmt: skip
    shutil.copytree(initial["kits"], initial["backup"])
    assert pomona_command("silo", "backup", "{}/kit.backup", "--folder", "{}/kits/silo-0")(initial["backup"]) == 0  # fmt: skip
    shutil.copytree(initial["kits"], initial["silo"])
    kit = initial["silo"] / "kits" / "silo-1"
    shutil.rmtree(kit / "state")
    shutil.copytree(exchanges["first"].state, kit / "state")
    shutil.copytree(initial["kits"], initial["server"])
    for kit in (initial["server"] / "kits").iterdir():
        shutil.rmtree(kit / "state", ignore_errors=True)
        shutil.rmtree(kit / "run", ignore_errors=True)

    def silo(folder: Path) -> int:
        from pomona_federation.flower_apps import handled

        kit = folder / "kits" / "silo-1"
        with suppress(OSError):  # the process of a message ends, and the silo is absent
            answer = handled(kit, exchanges["second"].request)
            if answer.message_type == "answer":
                (folder / "answers").mkdir(exist_ok=True)
                (folder / "answers" / "uplink").write_bytes(answer.enclosed["uplink"])
                return 0
        sys.stderr.write("error[absent]")
        return 6

    def server(folder: Path) -> int:
        from federation_in_process import Federation, LocalGrid

        federation = Federation.__new__(Federation)
        federation.kits = folder / "kits"
        federation.names = world.federation.names
        federation.grid = LocalGrid({10 + i: federation.kits / n for i, n in enumerate(federation.names)})  # fmt: skip
        federation.run()
        return 0

    models = tree(*(f"kits/{n}/state/models" for n in world.federation.names))
    renewal_command = ("silo", "renew-key", "--folder", "{}/kits/silo-0")
    return {
        "run": (initial["empty"], Writer(run_command("apple"), ran, root="run")),
        "private run": (initial["empty"], Writer(run_command("fedavg", PRIVATE), ran, root="run")),
        "report": (initial["run"], Writer(pomona_command("report", "{}/run", "--out", "{}/page"), tree("page"), root="page")),
        "export": (initial["run"], Writer(pomona_command("export", "{}/run", "--client", "0", "--to", "safetensors", "--out", "{}/out/model.safetensors"), tree("out"), root="out")),
        "backup": (initial["kits"], Writer(pomona_command("silo", "backup", "{}/kit.backup", "--folder", "{}/kits/silo-0"), unpacked)),
        "server backup": (initial["kits"], Writer(pomona_command("server", "backup", "{}/kit.backup", "--folder", "{}/kits/server"), unpacked)),
        "restore": (initial["backup"], Writer(pomona_command("silo", "restore", "{}/kit.backup", "--folder", "{}/restored", "--spent", "0"), tree("restored", exclude=("audit.jsonl", "origin.json")))),
        "key renewal": (initial["kits"], Writer(renewal(renewal_command, repeated=False), renewed, renewal(renewal_command, repeated=True))),
        "silo's round": (initial["silo"], Writer(silo, tree("answers", "kits/silo-1/state/models"), root="kits/silo-1")),
        "server's study": (initial["server"], Writer(server, models, root="kits/server")),
    }  # fmt: skip


def renewal(first_step: tuple[str, ...], repeated: bool) -> Callable[[Path], int]:
    """A silo's next key: made, certified, registered, used; done again, steps that are done say so."""

    def act(folder: Path) -> int:
        from pomona_federation.installation.key_renewal import use

        kits = folder / "kits"
        public, certified = kits / "silo-0/keys/next.pub", kits / "renewed/silo-0/1"
        steps = (
            first_step,
            ("deploy", "renew-key", "silo-0", "--key", str(public), "--out", str(kits)),
            ("server", "renew-key", "silo-0", "--key", str(certified / "silo-0.pub"), "--folder", str(kits / "server")),
        )  # fmt: skip
        for step in steps:
            if (code := pomona_command(*step)(folder)) and not repeated:
                return code
        from test_key_renewal import always_member

        if public.exists():
            use(kits / "silo-0", certified, always_member)
        return 0

    return act


def renewed(folder: Path) -> bytes:
    """Whether the new key is in use, everywhere."""
    kits = folder / "kits"
    public = (kits / "renewed/silo-0/1/silo-0.pub").read_text().split()[1]
    from pomona_federation import keys

    used = (
        keys.line(keys.private_key(kits / "silo-0/keys/silo.key").public_key()).decode().split()[1]
    )
    left = sorted(p.name for p in (kits / "silo-0/keys").glob("next.*"))
    registered = public in (kits / "server/run/roster.json").read_text()
    return json.dumps([used == public, registered, left]).encode()


# One fault.


def attempt(act: Callable[[Path], int], folder: Path) -> tuple[int, str]:
    """An exit code, and the output."""
    from pomona.core.errors import PomonaError

    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            code = act(folder)
        except PomonaError as fault:
            code = fault.code
            output.write(fault.line())
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except OSError as fault:  # as the command line's last resort
            code = 6
            output.write(f"error[STORAGE] {fault}")
    return code, output.getvalue()


def differing(right: bytes, result: bytes) -> str:
    """The files whose content differs, if results are files by name."""
    expected, actual = json.loads(right), json.loads(result)
    if not isinstance(expected, dict) or not isinstance(actual, dict):
        return "results"
    return f"files: {sorted(k for k in expected.keys() | actual.keys() if expected.get(k) != actual.get(k))}"


def case(
    initial: Path, work: Path, writer: Writer, first_call: int, last_call: int, right: bytes | None
) -> dict[str, object]:
    """A writer with the fault at a call; 0 for none."""
    library = ctypes.CDLL(os.environ[PRELOAD])
    library.faults_call.restype = ctypes.c_char_p
    shutil.copytree(initial, work, dirs_exist_ok=True)
    library.faults_arm(
        f"{work}/{writer.root}".encode(), ctypes.c_long(first_call), ctypes.c_long(last_call)
    )
    code, output = attempt(writer.act, work)
    call_count, failed_call = library.faults_calls(), library.faults_call().decode()
    library.faults_arm(b"", ctypes.c_long(0), ctypes.c_long(0))
    fault = ""
    if code and ("Traceback" in output or output.count("error[") != 1):
        fault = f"no single line of error: {output[-300:]!r}"
    elif not code and right is not None and writer.result(work) != right:
        fault = "exit code 0, but the files differ"
    if right is not None and code:
        retry_code, retry_output = attempt(writer.retry or writer.act, work)
        if retry_code:
            fault = fault or f"cannot be done again: {retry_output[-300:]!r}"
        elif writer.result(work) != right:
            fault = (
                fault or f"done again, it ends with other {differing(right, writer.result(work))}"
            )
    result = writer.result(work).hex() if right is None else ""
    return {"calls": call_count, "call": failed_call, "code": code, "fault": fault, "said": output[-200:], "result": result}  # fmt: skip


def forked(act: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What a function returns in a fork; what it raises, as a fault."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            logging.disable()
            with os.fdopen(writer, "w") as stream:
                try:
                    answer = act()
                except BaseException as fault:
                    import traceback

                    answer = {"fault": f"{type(fault).__name__}: {fault} {''.join(traceback.format_tb(fault.__traceback__)[-3:])}"}  # fmt: skip
                stream.write(json.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    result: dict[str, object] = json.loads(text) if text else {"fault": "the process died"}
    return {"calls": 0, "call": "", "code": -1, "said": "", "result": ""} | result


def tried(
    name: str, initial: Path, writer: Writer, folder: Path, options: argparse.Namespace
) -> int:
    """Print one writer's figures and what is wrong; returns the number of faults."""
    start_time, faults, outcomes = time.monotonic(), 0, Counter[str]()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)

    def fresh(first_call: int, last_call: int, right: bytes | None) -> dict[str, object]:
        shutil.rmtree(work, ignore_errors=True)
        return forked(lambda: case(initial, work, writer, first_call, last_call, right))

    shutil.copytree(initial, work, dirs_exist_ok=True)
    attempt(writer.act, work)  # what it imports is there for all forks
    undisturbed = fresh(0, 0, None)
    if undisturbed["fault"] or undisturbed["code"]:
        print(f"{name}: fails without a fault: {undisturbed}")
        return 1
    right, call_count = bytes.fromhex(str(undisturbed["result"])), int(str(undisturbed["calls"]))
    call_number, functions = options.first, Counter[str]()
    while call_number <= call_count:
        result = fresh(call_number, sys.maxsize if options.rest else call_number, right)
        functions[str(result["call"]).partition(" ")[0]] += 1
        outcomes["went on" if not result["code"] else f"code {result['code']}"] += 1
        if result["fault"]:
            faults += 1
            print(f"  {name}, call {call_number}, {result['call']}, code {result['code']}: {result['fault']}", flush=True)  # fmt: skip
        call_number += options.every
    tried_ = sum(functions.values())
    listed = ", ".join(f"{count} {function}" for function, count in sorted(functions.items()))
    summary = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items()))
    print(
        f"{name}: {tried_} of {call_count} calls failed once ({listed}); {summary}; {faults} lost; "
        f"{time.monotonic() - start_time:.0f} s",
        flush=True,
    )
    return faults


def main(arguments: list[str]) -> int:
    """Compile the library, start again with it, and try the writers."""
    if PRELOAD not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "io_faults.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, FOLDER / "io_faults.c", "-ldl"], check=True)  # fmt: skip
            environment = {**os.environ, PRELOAD: str(library), "TMPDIR": folder}
            return subprocess.run([sys.executable, __file__, *arguments], env=environment, check=False).returncode  # fmt: skip
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(FOLDER), *(str(FOLDER.parents[2] / p) for p in ("tests", "federation/tests", "federation/tests/fuzz"))]  # fmt: skip
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        available = writers(Path(folder))
        chosen = {n: w for n, w in available.items() if not options.names or n in options.names}
        faults = sum(tried(name, *writer, Path(folder), options) for name, writer in chosen.items())
    print(f"{faults} faults")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
