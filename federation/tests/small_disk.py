"""A folder on a small separate disk, in a mount namespace, for processes that must run out of
space.
"""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

MOUNT_SCRIPT = """
set -e
cp -a "$1" "$1.before"
mount -t tmpfs -o mode=700,size="$2" none "$1"
cp -a "$1.before/." "$1"
rm -r "$1.before"
echo mounted
exec cat
"""  # which ends with the test's end of its input


class SmallDisk:
    """The disk of a folder; ``before`` is a command prefix that gives access to it."""

    def __init__(self, folder, holder):
        self.root = Path(f"/proc/{holder}/root")
        self.folder = self.root / str(folder).lstrip("/")
        self.before = ("nsenter", "-t", str(holder), "-U", "-m", "--preserve-credentials")

    def fill(self, left=0):
        """Leave this many bytes free."""
        while (free := shutil.disk_usage(self.folder).free) > left:
            with (self.folder / "ballast").open("ab") as file:
                file.write(bytes(min(free - left, 1 << 16)))

    def clear(self):
        """Remove the filler."""
        (self.folder / "ballast").unlink()


@contextmanager
def small_disk(folder, size):
    """Mount a disk of this size over a folder, with the folder's content.

    Skips if mounts are not permitted.
    """
    if not all(map(shutil.which, ("unshare", "nsenter"))):
        pytest.skip("needs unshare and nsenter (util-linux)")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = ["unshare", "-rm", "sh", "-c", MOUNT_SCRIPT, "sh", str(folder), str(size)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=os.environ | {"LC_ALL": "C"}, text=True) as holder:
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no mount of our own here: {holder.communicate()[1].strip()}")
        try:
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.stdin.close()
            holder.wait(10)
