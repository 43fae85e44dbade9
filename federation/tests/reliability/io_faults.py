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

HERE = Path(__file__).parent
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True)
class Writer:
    """What writes files.

    Attributes:
        act: writes, given the folder; returns an exit code.
        result: what must be the same after a fault and another try, as bytes.
        again: how it is tried again, ``act`` by default.
        root: the folder in the folder whose calls fail.
    """

    act: Callable[[Path], int]
    result: Callable[[Path], bytes]
    again: Callable[[Path], int] | None = None
    root: str = ""


def tree(*names: str, without: tuple[str, ...] = ()) -> Callable[[Path], bytes]:
    """The content of all files in these folders, without some by name."""

    def result(folder: Path) -> bytes:
        files = sorted(p for name in names for p in (folder / name).rglob("*") if p.is_file())
        seen = {
            str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in files
            if not any(p.match(pattern) for pattern in without)
        }
        return json.dumps(seen, indent=1).encode()

    return result


def words(*parts: str) -> Callable[[Path], int]:
    """A command, with ``{}`` for the folder."""

    def act(folder: Path) -> int:
        from command_line import command

        return command(*(part.replace("{}", str(folder)) for part in parts))

    return act


def run_words(*settings: str) -> Callable[[Path], int]:
    from runs import BASE

    small = [w for w in BASE if not w.startswith("rounds")]
    return words("run", *settings[:1], *small, "rounds=2", "workers=1", *settings[1:], "--no-report", "--resume", "--out", "{}/run")  # fmt: skip


def ran(folder: Path) -> bytes:
    """Models, predictions and events of a run."""
    from runs import outcome

    tensors, events = outcome(folder / "run")
    files = tree("run/models", "run/partition.json")(folder)
    return json.dumps([tensors, events, files.decode()], sort_keys=True).encode()


def unpacked(folder: Path) -> bytes:
    """The members of a backup, by name."""
    with tarfile.open(folder / "kit.backup") as tar:
        found = {m.name: hashlib.sha256(tar.extractfile(m).read()).hexdigest() for m in tar if m.isfile()}  # fmt: skip
    found.pop("backup.json")  # has the time
    return json.dumps(found, sort_keys=True).encode()


def writers(folder: Path) -> dict[str, tuple[Path, Writer]]:
    """All writers, each with the folder that it starts from."""
    from runs import PRIVATE
    from worlds import World

    world = World(folder)
    told = world.said  # a federation has run
    begin = {name: folder / f"begin-{name}" for name in ("empty", "run", "kits", "backup", "silo", "server")}  # fmt: skip
    begin["empty"].mkdir()
    shutil.copytree(world.run, begin["run"] / "run")
    shutil.copytree(world.federation.kits, begin["kits"] / "kits", ignore=shutil.ignore_patterns("arrivals"))  # fmt: skip
    shutil.copytree(begin["kits"], begin["backup"])
    assert words("silo", "backup", "{}/kit.backup", "--folder", "{}/kits/silo-0")(begin["backup"]) == 0  # fmt: skip
    shutil.copytree(begin["kits"], begin["silo"])
    kit = begin["silo"] / "kits" / "silo-1"
    shutil.rmtree(kit / "state")
    shutil.copytree(told["first"].state, kit / "state")
    shutil.copytree(begin["kits"], begin["server"])
    for kit in (begin["server"] / "kits").iterdir():
        shutil.rmtree(kit / "state", ignore_errors=True)
        shutil.rmtree(kit / "run", ignore_errors=True)

    def silo(folder: Path) -> int:
        from pomona_federation.flower_apps import handled

        kit = folder / "kits" / "silo-1"
        with suppress(OSError):  # the process of a message ends, and the silo is absent
            answer = handled(kit, told["second"].asked)
            if answer.kind == "answer":
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
    once = ("silo", "renew-key", "--folder", "{}/kits/silo-0")
    return {
        "run": (begin["empty"], Writer(run_words("apple"), ran, root="run")),
        "private run": (begin["empty"], Writer(run_words("fedavg", PRIVATE), ran, root="run")),
        "report": (begin["run"], Writer(words("report", "{}/run", "--out", "{}/page"), tree("page"), root="page")),
        "export": (begin["run"], Writer(words("export", "{}/run", "--client", "0", "--to", "safetensors", "--out", "{}/out/model.safetensors"), tree("out"), root="out")),
        "backup": (begin["kits"], Writer(words("silo", "backup", "{}/kit.backup", "--folder", "{}/kits/silo-0"), unpacked)),
        "server backup": (begin["kits"], Writer(words("server", "backup", "{}/kit.backup", "--folder", "{}/kits/server"), unpacked)),
        "restore": (begin["backup"], Writer(words("silo", "restore", "{}/kit.backup", "--folder", "{}/restored", "--spent", "0"), tree("restored", without=("audit.jsonl", "origin.json")))),
        "key renewal": (begin["kits"], Writer(renewal(once, again=False), renewed, renewal(once, again=True))),
        "silo's round": (begin["silo"], Writer(silo, tree("answers", "kits/silo-1/state/models"), root="kits/silo-1")),
        "server's study": (begin["server"], Writer(server, models, root="kits/server")),
    }  # fmt: skip


def renewal(begin: tuple[str, ...], again: bool) -> Callable[[Path], int]:
    """A silo's next key: made, certified, registered, used; done again, steps that are done say so."""

    def act(folder: Path) -> int:
        from pomona_federation.installation.key_renewal import use

        kits = folder / "kits"
        public, made = kits / "silo-0/keys/next.pub", kits / "renewed/silo-0/1"
        steps = (
            begin,
            ("deploy", "renew-key", "silo-0", "--key", str(public), "--out", str(kits)),
            ("server", "renew-key", "silo-0", "--key", str(made / "silo-0.pub"), "--folder", str(kits / "server")),
        )  # fmt: skip
        for step in steps:
            if (code := words(*step)(folder)) and not again:
                return code
        from test_key_renewal import known

        if public.exists():
            use(kits / "silo-0", made, known)
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
    """An exit code, and what was said to the user."""
    from pomona.core.errors import PomonaError

    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = act(folder)
        except PomonaError as fault:
            code = fault.code
            said.write(fault.line())
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except OSError as fault:  # as the command line's last resort
            code = 6
            said.write(f"error[STORAGE] {fault}")
    return code, said.getvalue()


def differing(right: bytes, result: bytes) -> str:
    """The files whose content differs, if results are files by name."""
    one, two = json.loads(right), json.loads(result)
    if not isinstance(one, dict) or not isinstance(two, dict):
        return "results"
    return f"files: {sorted(k for k in one.keys() | two.keys() if one.get(k) != two.get(k))}"


def case(
    begin: Path, work: Path, writer: Writer, at: int, until: int, right: bytes | None
) -> dict[str, object]:
    """A writer with the fault at a call; 0 for none."""
    library = ctypes.CDLL(os.environ[PRELOAD])
    library.faults_call.restype = ctypes.c_char_p
    shutil.copytree(begin, work, dirs_exist_ok=True)
    library.faults_arm(f"{work}/{writer.root}".encode(), ctypes.c_long(at), ctypes.c_long(until))
    code, said = attempt(writer.act, work)
    calls, call = library.faults_calls(), library.faults_call().decode()
    library.faults_arm(b"", ctypes.c_long(0), ctypes.c_long(0))
    fault = ""
    if code and ("Traceback" in said or said.count("error[") != 1):
        fault = f"no single line of error: {said[-300:]!r}"
    elif not code and right is not None and writer.result(work) != right:
        fault = "it says that all is well, and is not"
    if right is not None and code:
        second, said_then = attempt(writer.again or writer.act, work)
        if second:
            fault = fault or f"cannot be done again: {said_then[-300:]!r}"
        elif writer.result(work) != right:
            fault = (
                fault or f"done again, it ends with other {differing(right, writer.result(work))}"
            )
    result = writer.result(work).hex() if right is None else ""
    return {"calls": calls, "call": call, "code": code, "fault": fault, "said": said[-200:], "result": result}  # fmt: skip


def forked(act: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What a function returns in a fork; what it raises, as a fault."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            logging.disable()
            with os.fdopen(writer, "w") as out:
                try:
                    answer = act()
                except BaseException as fault:
                    import traceback

                    answer = {"fault": f"{type(fault).__name__}: {fault} {''.join(traceback.format_tb(fault.__traceback__)[-3:])}"}  # fmt: skip
                out.write(json.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: dict[str, object] = json.loads(text) if text else {"fault": "the process died"}
    return {"calls": 0, "call": "", "code": -1, "said": "", "result": ""} | found


def tried(name: str, begin: Path, writer: Writer, folder: Path, options: argparse.Namespace) -> int:
    """Print one writer's figures and what is wrong; returns the number of faults."""
    since, faults, ends = time.monotonic(), 0, Counter[str]()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)

    def fresh(at: int, until: int, right: bytes | None) -> dict[str, object]:
        shutil.rmtree(work, ignore_errors=True)
        return forked(lambda: case(begin, work, writer, at, until, right))

    shutil.copytree(begin, work, dirs_exist_ok=True)
    attempt(writer.act, work)  # what it imports is there for all forks
    whole = fresh(0, 0, None)
    if whole["fault"] or whole["code"]:
        print(f"{name}: fails without a fault: {whole}")
        return 1
    right, calls = bytes.fromhex(str(whole["result"])), int(str(whole["calls"]))
    at, kinds = options.first, Counter[str]()
    while at <= calls:
        seen = fresh(at, sys.maxsize if options.rest else at, right)
        kinds[str(seen["call"]).partition(" ")[0]] += 1
        ends["went on" if not seen["code"] else f"code {seen['code']}"] += 1
        if seen["fault"]:
            faults += 1
            print(f"  {name}, call {at}, {seen['call']}, code {seen['code']}: {seen['fault']}", flush=True)  # fmt: skip
        at += options.every
    tried_ = sum(kinds.values())
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    ended = ", ".join(f"{end}: {count}" for end, count in sorted(ends.items()))
    print(
        f"{name}: {tried_} of {calls} calls failed once ({listed}); {ended}; {faults} lost; "
        f"{time.monotonic() - since:.0f} s",
        flush=True,
    )
    return faults


def main(given: list[str]) -> int:
    """Compile the library, start again with it, and try the writers."""
    if PRELOAD not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "io_faults.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "io_faults.c", "-ldl"], check=True)  # fmt: skip
            environment = {**os.environ, PRELOAD: str(library), "TMPDIR": folder}
            return subprocess.run([sys.executable, __file__, *given], env=environment, check=False).returncode  # fmt: skip
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    options = parser.parse_args(given)
    sys.path[:0] = [str(HERE), *(str(HERE.parents[2] / p) for p in ("tests", "federation/tests", "federation/tests/fuzz"))]  # fmt: skip
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        known = writers(Path(folder))
        chosen = {n: w for n, w in known.items() if not options.names or n in options.names}
        faults = sum(tried(name, *writer, Path(folder), options) for name, writer in chosen.items())
    print(f"{faults} faults")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
