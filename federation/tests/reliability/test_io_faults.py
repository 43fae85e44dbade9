"""A sample of ``io_faults.py``: calls that change files fail once, and nothing is lost."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("io_faults.py")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_some_calls_that_fail_lose_nothing():
    words = ["backup", "key renewal", "--every", "29"]
    command = [sys.executable, SCRIPT, *words]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stdout + out.stderr[-2000:]
    assert len(re.findall(r"^(backup|key renewal): [1-9].* failed once .* 0 lost", out.stdout, re.M)) == 2  # fmt: skip
