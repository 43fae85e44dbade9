"""States of the folder before a command: interrupted runs, damaged files, custom data."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def interrupted(arguments, number=3):
    """A run of two committed rounds."""
    return lambda world: world.interrupt(arguments, number)


def damaged(arguments, change, index):
    """A run of two committed rounds with the ``index`` checkpoints damaged."""

    def prepare(world):
        world.interrupt(arguments, 3)
        for path in sorted(world.out.glob("checkpoints/round-*"))[index]:
            path.write_bytes(change(path.read_bytes()))

    return prepare


def flipped(content):
    """Flip one bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Canary:
    """Runs code when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def pickled(arguments):
    """A run of two committed rounds whose checkpoints were replaced by files of torch.save."""

    def prepare(world):
        world.interrupt(arguments, 3)
        for path in world.out.glob("checkpoints/round-*"):
            torch.save({"w": Canary(world.folder / "canary")}, path)

    return prepare


def finished(arguments):
    """A finished run."""

    def prepare(world):
        assert world.run(arguments) == 0

    return prepare


def rewritten(previous, name, old, new):
    """The previous state, with bytes replaced in the first file that contains them."""

    def prepare(world):
        previous(world)
        content = (world.out / name).read_bytes()
        assert old in content
        (world.out / name).write_bytes(content.replace(old, new, 1))

    return prepare


def ledgers(arguments, change):
    """A private run of two committed rounds, with ``change(path)`` applied to its ledgers."""

    def prepare(world):
        world.interrupt(arguments, 3)
        for path in world.out.glob("private/dp/*/ledger.jsonl"):
            change(path)

    return prepare


def table(text):
    """A CSV file."""
    return lambda world: (world.folder / "own.csv").write_text(text)


def arrays(**content):
    """An archive of arrays."""
    return lambda world: np.savez(world.folder / "own.npz", **content)


def truncated(**content):
    """An archive of arrays, cut off at the end."""

    def prepare(world):
        arrays(**content)(world)
        path = world.folder / "own.npz"
        path.write_bytes(path.read_bytes()[:-100])

    return prepare


def pickled_arrays(world):
    """An archive with Python objects."""
    x = np.array([Canary(world.folder / "canary")] * 30, dtype=object)
    np.savez(world.folder / "own.npz", x=x, y=np.arange(30) % 3, allow_pickle=True)


def pipe(world):
    """A pipe without a writer."""
    os.mkfifo(world.folder / "own.csv")


def images(world):
    """A folder of classes: an empty image, a truncated one, a file of text, another format; and an
    empty class.
    """
    for k in range(6):
        pixels = np.random.Generator(np.random.Philox(k)).integers(0, 255, (16, 16), dtype=np.uint8)
        path = world.folder / "own" / "a" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        content = path.read_bytes()
        path.write_bytes({0: b"", 1: content[:-40], 2: b"text"}.get(k, content))
    (path.parent / "scan.dcm").write_bytes(b"DICM")
    (world.folder / "own" / "b").mkdir()


def postscript(world):
    """An image for which Pillow would start another program, among others of its class."""
    for k in range(6):
        path = world.folder / "own" / "ab"[k % 2] / f"{k}.eps"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (k, k, k)).save(path, None if not k else "PNG")
        path.rename(path.with_suffix(".png"))


def in_the_way(world):
    """A file in place of the folder."""
    world.out.write_text("mine")


def read_only(world):
    """An output folder on a file system that refuses writes."""
    world.out = Path("/proc/pomona")


def sites(sizes, label=lambda i, k: k % 2):
    """A table of clients: a name, two numbers and a label per line."""
    lines = [
        f"{name},{(7 * k + 3 * i) % 11},{(5 * k + i) % 13},{label(i, k)}"
        for i, (name, n) in enumerate(sizes.items())
        for k in range(n)
    ]
    return table("\n".join(["site,a,b,y", *lines]) + "\n")
