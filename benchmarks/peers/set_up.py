"""Environments for other simulators, separate from Pomona's: python benchmarks/peers/set_up.py
[NAME ...]

Each is created in ``.venv/peers/NAME`` (PEERS_FOLDER replaces ``.venv/peers``), with the versions
in ``NAME.txt`` next to this file. PFLlib is not on PyPI: its repository is cloned into the folder
``PFLlib`` of its environment, at the commit below; if its public address cannot be reached, PFLLIB
names a local clone. pfl needs Python below 3.13: PYTHON names another interpreter. BlazeFL needs
3.14, best without the lock of the interpreter: uv takes it from the PATH or downloads it; where it
can do neither, BlazeFL is named and left out. Installed by uv, which is among Pomona's development
tools and takes settings from its own variables: UV_TORCH_BACKEND=cpu saves some GB if PyTorch would
come with CUDA.
"""

import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent
FOLDER = Path(
    os.environ.get("PEERS_FOLDER", REQUIREMENTS.parents[1] / ".venv" / "peers")
).absolute()
PFLLIB = "https://github.com/TsingZ0/PFLlib"
COMMIT = "d832e76f6a23b833038949ec1e4fdefe63a4d350"  # 2025-11-29
PYTHONS = {"blazefl": ("3.14t", "3.14")}  # in order of preference; the others take Pomona's
NAMES = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))


def python(name: str) -> Path:
    """The interpreter of an environment, existing or not."""
    return FOLDER / name / "bin" / "python"


def checkout() -> Path:
    """Path of PFLlib's checkout."""
    return FOLDER / "pfllib" / "PFLlib"


def missing(name: str) -> str:
    """How to create a missing environment; empty if it exists."""
    exists = (FOLDER / name / "ready").exists()
    return "" if exists else f"{name} is not set up: python benchmarks/peers/set_up.py {name}"


def set_up(name: str) -> str:
    """Create an environment, or update it. Returns what became of it."""
    folder = FOLDER / name
    marker = folder / "ready"
    marker.unlink(missing_ok=True)
    uv = [sys.executable, "-m", "uv", "--quiet"]
    pythons = PYTHONS.get(name, (os.environ.get("PYTHON", sys.executable),))
    if not python(name).exists() and all(
        subprocess.run([*uv, "venv", "--python", version, str(folder)], check=False).returncode
        for version in pythons
    ):
        return f"is left out: no Python {' or '.join(pythons)} can be used (uv's message is above)"
    subprocess.run(
        [
            *uv,
            "pip",
            "install",
            "--compile-bytecode",
            "--python",
            str(python(name)),
            "-r",
            str(REQUIREMENTS / f"{name}.txt"),
        ],
        check=True,
    )
    if name == "pfllib":
        git = ["git", "-C", str(checkout())]
        if not checkout().exists():
            source = os.environ.get("PFLLIB", PFLLIB)
            subprocess.run(
                ["git", "clone", "--quiet", "--no-checkout", source, str(checkout())], check=True
            )
        # its programs alone
        subprocess.run([*git, "checkout", "--quiet", COMMIT, "--", "system"], check=True)
    marker.touch()
    return "is ready"


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        assert chosen in NAMES, f"{chosen}: one of {', '.join(NAMES)}"
        print(chosen, set_up(chosen), flush=True)
