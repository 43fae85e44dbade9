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
    arguments = ["backup", "key renewal", "--every", "29"]
    command = [sys.executable, SCRIPT, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert len(re.findall(r"^(backup|key renewal): [1-9].* failed once .* 0 lost", result.stdout, re.M)) == 2  # fmt: skip
