"""The child process in which foreign files are read: replies, errors, crashes and limits."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pomona.core.errors import ConfigError, DataError, OutOfMemoryError
from pomona.data import reader_process
from pomona.data.images.image_file import NoPixelsError
from pomona.data.reader_process import Reply, read_in_child, shared_number

shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)


@pytest.mark.long
@given(st.lists(arrays.arrays(np.float32, shapes), max_size=3), st.integers())
def test_a_reply_arrives_as_it_was_sent(arrays_sent, fact):
    facts, received = read_in_child(lambda: Reply({"n": fact}, arrays_sent), "x")
    assert facts == {"n": fact}
    assert len(received) == len(arrays_sent)
    for expected, actual in zip(arrays_sent, received, strict=True):
        np.testing.assert_array_equal(expected, actual)
        assert expected.shape == actual.shape


def test_received_arrays_can_be_written_and_are_not_shared():
    (array,) = read_in_child(lambda: Reply(None, [np.zeros(3)]), "x").arrays
    array[:] = 1
    assert array.tolist() == [1, 1, 1]


def test_what_libraries_log_and_ignore_in_the_child_is_not_shown(tmp_path):
    """tifffile logs a tag that it cannot read, Arrow prints bytes of a short line that are no text."""
    tifffile = pytest.importorskip("tifffile")
    tag = (42113, "s", 0, "-9999", True)  # GDAL_NODATA
    image = np.zeros((4, 5), np.uint16)
    for name in ("a.tif", "b.tif"):
        tifffile.imwrite(tmp_path / name, image, extratags=[tag])
    (tmp_path / "a.csv").write_text("path,label\na.tif,0\nb.tif,1\n")
    (tmp_path / "b.csv").write_bytes(b"age,y\n1,0\n\xfc\n")
    program = (
        "from pomona.core.errors import DataError\n"
        "from pomona.data import data_settings, read\n"
        "read(data_settings(name='images', path='a.csv'))\n"
        "try: read(data_settings(name='table', path='b.csv', label_column='y'))\n"
        "except DataError as fault: print(fault)"
    )
    call = [sys.executable, "-W", "ignore", "-c", program]  # pytest collects both by itself
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "not UTF-8" in done.stdout
    assert done.stderr == ""


def test_a_child_changes_a_shared_number():
    number = shared_number()

    def work():
        number[0] = 7
        return Reply(None)

    assert number.tolist() == [0]
    read_in_child(work, "x")
    assert number.tolist() == [7]


@pytest.mark.parametrize("error", [DataError, ConfigError])
def test_an_error_keeps_its_kind_and_all_its_lines(error):
    def work():
        raise error("summary", "first", "second")

    with pytest.raises(error) as raised:
        read_in_child(work, "x")
    assert raised.value.args == ("summary", "first", "second")


def test_an_error_of_a_module_arrives_as_the_error_that_it_is_one_of():
    def work():
        raise NoPixelsError("no image")

    with pytest.raises(DataError, match="no image"):
        read_in_child(work, "scan.dcm")


def test_an_unexpected_exception_names_its_type_and_its_line():
    """Whoever writes a reader needs the line of its mistake, which is in the child."""
    with pytest.raises(RuntimeError, match=rf"^ZeroDivisionError(.|\n)*{Path(__file__).name}"):
        read_in_child(lambda: Reply(1 // 0), "x")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_one_line_with_the_file(number):
    with pytest.raises(DataError, match=rf"scan\.dcm.*{signal.Signals(number).name}"):
        read_in_child(lambda: os.kill(os.getpid(), number), "scan.dcm")


def test_a_child_that_exits_without_an_answer_is_an_error():
    with pytest.raises(DataError, match="without a result"):
        read_in_child(lambda: os._exit(0), "x")


def test_memory_is_limited(monkeypatch):
    monkeypatch.setattr(reader_process, "LEAST_MEMORY", 1 << 26)
    monkeypatch.setattr(reader_process, "MEMORY_SHARE", 0.0)
    assert read_in_child(lambda: Reply(None, [np.ones(1 << 20)]), "x").arrays[0].sum() == 1 << 20
    with pytest.raises(OutOfMemoryError, match="large"):
        read_in_child(lambda: Reply(float(np.ones(1 << 25).sum())), "large")


def test_processor_time_is_limited(monkeypatch):
    monkeypatch.setattr(reader_process, "BASE_SECONDS", 1)

    def work():
        while True:
            pass

    with pytest.raises(DataError, match=r"loop.*processor time"):
        read_in_child(work, "loop")


def test_limits_end_with_the_child():
    limits = [resource.getrlimit(limit) for limit in (resource.RLIMIT_CPU, resource.RLIMIT_DATA)]
    read_in_child(lambda: Reply(None), "x")
    assert limits == [
        resource.getrlimit(limit) for limit in (resource.RLIMIT_CPU, resource.RLIMIT_DATA)
    ]
