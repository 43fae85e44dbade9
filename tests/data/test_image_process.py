"""Files of images are read in a process of their own, which they may crash, loop or fill."""

import os
import signal

import numpy as np
import pytest
from PIL import Image

from pomona.core.errors import DataError
from pomona.data import data_settings, read, reader_process
from pomona.data.formats import pictures
from pomona.data.images import image_stack


@pytest.fixture
def folder(tmp_path):
    """Six gray images of two classes; the pixels are the number of the file."""
    for k in range(6):
        path = tmp_path / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (3, 2), k).save(path)
    return tmp_path


def crash_on(monkeypatch, *names, crash=lambda: os.kill(os.getpid(), signal.SIGSEGV)):
    """The library that reads these files does this instead."""
    opened = pictures.opened

    def crashing(path):
        return crash() if path.name in names else opened(path)

    monkeypatch.setattr(pictures, "opened", crashing)


def numbers(folder, **settings):
    dataset = read(data_settings(name="images", path=folder, **settings))
    return dataset.x[:, 0, 0, 0].tolist(), dataset.y.tolist(), dataset.notes


def test_a_crash_is_one_line_with_the_file(folder, monkeypatch):
    crash_on(monkeypatch, "3.png")
    with pytest.raises(DataError, match=r"b/3\.png: the library that reads it crashed \(SIGSEGV\)"):
        numbers(folder)


def test_a_file_that_crashes_its_reader_can_be_skipped(folder, monkeypatch):
    crash_on(monkeypatch, "3.png", "4.png")
    values, labels, notes = numbers(folder, skip_bad=True)
    assert (values, labels) == ([0, 2, 1, 5], [0, 0, 1, 1])
    assert "2 of 6 files are skipped" in notes[0]
    assert "3.png" in " ".join(notes)


def test_crashes_without_end_are_an_error(folder, monkeypatch):
    monkeypatch.setattr(image_stack, "MOST_CRASHES", 2)
    crash_on(monkeypatch, *(f"{k}.png" for k in range(6)))
    with pytest.raises(DataError, match="crashed"):
        numbers(folder, skip_bad=True)


@pytest.mark.long
def test_a_file_that_never_ends_is_named(folder, monkeypatch):
    monkeypatch.setattr(reader_process, "BASE_SECONDS", 1)
    monkeypatch.setattr(reader_process, "SECONDS_PER_MEGABYTE", 0.0)

    def loop():
        while True:
            pass

    crash_on(monkeypatch, "5.png", crash=loop)
    with pytest.raises(DataError, match=r"5\.png.*processor time"):
        numbers(folder)


def test_a_file_that_fills_the_memory_is_named(folder, monkeypatch):
    monkeypatch.setattr(reader_process, "LEAST_MEMORY", 1 << 28)
    monkeypatch.setattr(reader_process, "MEMORY_SHARE", 0.0)
    crash_on(monkeypatch, "2.png", crash=lambda: np.ones(1 << 27))
    with pytest.raises(DataError, match=r"2\.png.*memory"):
        numbers(folder)
    assert numbers(folder, skip_bad=True)[0] == [0, 4, 1, 3, 5]


@pytest.mark.parametrize("share", [1.0, 1e-15])
def test_images_in_memory_and_on_disk_are_alike(folder, share):
    dataset = read(data_settings(name="images", path=folder, memory_share=share))
    assert isinstance(dataset.x, np.memmap) == (share < 1)
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    dataset.x[0] = 9  # as methods that poison or rotate do
    assert dataset.x[0, 0, 0, 0] == 9
