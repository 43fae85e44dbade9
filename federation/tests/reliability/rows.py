"""Faults injected into a run in this process: action, exit code, output, and what must hold then.

``fault_table`` makes the site's table from these rows.
"""

import io
import json
import shutil
from pathlib import Path

import beginnings as begin
import holds
import injections as inject
import numpy as np
import torch
from runs import BASE, PRIVATE
from world import Row, do_nothing

ROUNDS = 4
APPLE = ("apple", f"rounds={ROUNDS}", "workers=1")
ASKING = (*APPLE, "method.budget=2")
HIDDEN = (*APPLE, PRIVATE)
UNCHANGED = (*APPLE, "lr=1e-30", "method.dr_lr=1e-30")
CSV = (
    "fedavg",
    "rounds=2",
    "workers=1",
    "data=table",
    "data.path={here}/own.csv",
    "data.label_column=y",
    "model=mlp",
)
SITES = (*CSV, "data.client_column=site")
IMAGES = ("fedavg", "rounds=2", "data=images", "data.path={here}/own", "clients=2")
NPZ = (
    "fedavg",
    "rounds=2",
    "workers=1",
    "data=arrays",
    "data.path={here}/own.npz",
    "clients=2",
    "model=mlp",
)
X = np.random.Generator(np.random.Philox(1)).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
PIXELS = np.random.Generator(np.random.Philox(2)).integers(0, 256, (60, 8, 8), dtype=np.uint8)
INTERRUPTED = begin.interrupted(APPLE)
LONE = begin.sites({"a": 20, "b": 20, "lone": 1})
PATHS = begin.sites(
    {"../../x": 20, "/etc/passwd": 20, "ü" * 300: 20, "\u0430pple": 20, "apple": 20}
)


def row(
    id_,
    code,
    phrases=(),
    arguments=APPLE,
    prepare=do_nothing,
    fault=do_nothing,
    check=holds.as_undisturbed,
    options=(),
    base=BASE,
):
    """A fault in a run from its start."""
    return Row(id_, code, arguments, phrases, prepare, fault, check, options, base)


def resumed(id_, code, phrases=(), prepare=INTERRUPTED, **fields):
    """A fault when the command resumes a run of two committed rounds."""
    return row(id_, code, phrases, prepare=prepare, options=("--resume",), **fields)


def refused(id_, phrases, change):
    """Client 1's uplink of round 2 is changed and refused."""
    return row(
        id_, 0, ("client 1, round 2", phrases), fault=inject.uplink(change), check=holds.as_absent
    )


def unread(id_, phrases, data):
    """Client 1 sends other bytes in round 2, which are refused."""
    return row(
        id_, 0, ("client 1, round 2", phrases), fault=inject.wire(data), check=holds.as_absent
    )


def claim(id_, phrases, **claims):
    """Client 1's uplink of round 2 makes a false claim and is refused."""
    return row(
        id_, 0, ("client 1", phrases), fault=inject.false_claims(**claims), check=holds.as_absent
    )


def custom(id_, code, phrases, arguments, prepare, check=holds.unwritten):
    """A run with custom data."""
    return row(id_, code, phrases, arguments, prepare, check=check, base=())


def header(claim, name="core"):
    """The bytes of a file with only a header that describes a tensor."""
    text = json.dumps({name: claim}).encode()
    return len(text).to_bytes(8, "little") + text


def torch_file(spec):
    """Output of torch.save."""
    file = io.BytesIO()
    torch.save({name: torch.zeros(t.shape) for name, t in spec.items()}, file)
    return file.getvalue()


def twice_named(spec):
    """A header with a duplicate name."""
    text = b'{"core": {}, "core": {}}'
    return len(text).to_bytes(8, "little") + text


REWRITTEN = (
    ("another digit among the events", "events.jsonl", b'"accuracy": [0.', b'"accuracy": [1.'),
    ("a quote lost among the events", "events.jsonl", b'"event"', b'"event'),
    ("NUL among the events", "events.jsonl", b'"round"', b"\0round\0"),
    ("a list for an event", "events.jsonl", b'{"event": "round"', b'["event", "round"'),
    ("another learning rate in the settings", "config.toml", b"lr = 0.1", b"lr = 0.7"),
    ("another row in the partition", "partition.json", b'"train":[', b'"train":[0,'),
)
NEWEST, EVERY_CHECKPOINT = slice(-1, None), slice(None)
STORAGE = [
    row("F7 no room for a checkpoint", 6, ("No space left", "round 3", "up to 2 are kept", "resume"), fault=inject.full_disk(3), check=holds.resumes),
    row("F7 no room for the record", 6, ("No space left", "events.jsonl"), fault=inject.full_record(3), check=holds.resumes),
    row("F8 a file where the folder should be", 6, ("error[STORAGE]", "run"), prepare=begin.in_the_way, fault=inject.no_training, check=holds.unchanged),
    row("F8 a file system that cannot be written", 6, ("error[STORAGE]", "/proc/pomona"), prepare=begin.read_only, fault=inject.no_training, check=holds.unwritten),
    resumed("F9 the newest checkpoint cannot be read", 0, ("Input/output error", "round 1"), fault=inject.unreadable),
    resumed("F10 one bit of the newest checkpoint is wrong", 0, ("round-000002", "checksum", "round 1"), begin.damaged(APPLE, begin.flipped, NEWEST)),
    resumed("F10 the newest checkpoint is empty", 0, ("round-000002", "round 1"), begin.damaged(APPLE, lambda _: b"", NEWEST)),
    resumed("F11 all checkpoints are damaged", 4, ("all 2 checkpoints",), begin.damaged(APPLE, begin.flipped, EVERY_CHECKPOINT), check=holds.untouched),
    resumed("F12 resumed with other settings", 4, ("config.lr", "config.seed"), arguments=(*APPLE, "lr=0.2", "seed=3"), check=holds.untouched),
    resumed("F12 resumed with other data", 4, ("data",), arguments=(*APPLE, "data.train_limit=200"), check=holds.untouched),
    resumed("F12 resumed with another model", 4, ("config.model.hidden",), arguments=(*APPLE, "model.hidden=[9]"), check=holds.untouched),
    resumed("F12 resumed with another method", 4, ("config.method.name",), arguments=("fedavg", *APPLE[1:]), check=holds.untouched),
    resumed("F12 resumed with another form of checkpoints", 4, ("schema",), fault=inject.other_schema, check=holds.untouched),
    resumed("F13 resumed with another PyTorch", 0, ("torch", "0.1", "last bits"), fault=inject.other_versions),
    resumed("F13 resumed with more worker processes", 0, arguments=(*APPLE, "workers=2")),
    resumed("F14 a finished run is resumed", 0, ("is finished",), begin.finished(APPLE), check=holds.untouched),
    resumed("F14 a finished run is resumed with another method", 4, ("config.method.name",), begin.finished(APPLE), arguments=("fedavg", *APPLE[1:]), check=holds.untouched),
    resumed("F14 a finished run is resumed with fewer rounds", 4, ("rounds = 4", ("more rounds, "
                                                                                 "not fewer")), begin.finished(APPLE), arguments=(*APPLE, "rounds=3"), check=holds.untouched),
    resumed("F14 a finished run is given more rounds", 0, ("is finished after round 2; continuing",), begin.finished((*APPLE, "rounds=2"))),
    *(resumed(f"F51 {done} in an unfinished run", 4, (name, "restore"), begin.rewritten(begin.interrupted(APPLE), name, old, new), check=holds.untouched) for done, name, old, new in REWRITTEN),
    *(resumed(f"F51 {done} in a finished run", 4, (name, "restore"), begin.rewritten(begin.finished(APPLE), name, old, new), check=holds.untouched) for done, name, old, new in REWRITTEN),
]  # fmt: skip

UPLINKS = [
    row("F15 every uplink comes twice", 0, ("the same uplink again",), fault=inject.twice(dict)),
    row("F16 every uplink comes twice, the second time another", 0, ("a second uplink", "which counts"), fault=inject.twice(inject.core(lambda w: w + 1))),
    claim("F17 an uplink for an earlier round", "it is for round 1", round=-1),
    claim("F17 an uplink for a later round", "it is for round 3", round=1),
    claim("F17 an uplink for another run", "it is for run 'other'", run="other"),
    row("F18 every uplink comes again a round late", 0, ("it is for round 1", "it is for round 3"), fault=inject.late),
    refused("F23 an uplink with one NaN", "not finite (1 of", inject.wrong_number(torch.nan)),
    refused("F23 an uplink with one infinity", "not finite (1 of", inject.wrong_number(-torch.inf)),
    row("F23 one client sends NaN in every round", 0, ("client 1, round 3",), (*APPLE, "rounds=5"), fault=inject.uplink(inject.wrong_number(torch.nan), range(1, 6)), check=holds.in_quarantine),
    row("F23 all clients send NaN", 7, ("no uplink of round 3",), fault=inject.uplink(inject.wrong_number(torch.nan), (3,), range(4)), check=holds.resumes),
    refused("F24 a shape that broadcasts", "has shape (1,)", inject.core(lambda w: w[:1])),
    refused("F24 no dimension", "has shape ()", inject.core(lambda w: w[0])),
    refused("F24 one dimension more", "has shape (1, ", inject.core(lambda w: w[None])),
    refused("F24 one number more", "has shape", inject.core(lambda w: torch.cat([w, w[:1]]))),
    *(refused(f"F25 {str(t)[6:]} for float32", f"has dtype {t}", inject.core(lambda w, t=t: w.to(t))) for t in (torch.float16, torch.float64, torch.int32, torch.complex64)),
    refused("F25 text for a tensor", "is not a plain tensor", lambda uplink: {**uplink, "core": "weights"}),
    refused("F26 a tensor is missing", "is missing", lambda _: {}),
    refused("F26 a tensor too many", "is unknown", lambda uplink: {**uplink, "more": torch.zeros(1)}),
    unread("F26 a name twice", "appears twice in the header", twice_named),
    row("F26 tensors in another order", 0, (), ASKING, fault=inject.uplink(lambda uplink: dict(reversed(uplink.items())))),
    *(claim(f"F27 {json.dumps(n)} samples", "are registered", samples=n) for n in (0, -9, float("nan"), float("inf"), 1e18, True, [60])),
    unread("F28 ten times the bytes declared", "the limit is", lambda spec: bytes(40 * sum(t.numel() for t in spec.values()))),
    unread("F28 a header that declares 2^40 numbers", "bytes of tensors, but the file has 0", lambda _: header({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]})),
    unread("F29 an uplink written by torch.save", "an uplink", torch_file),
    row("F31 an uplink a million times as large", 0, ("client 1, round 2", "norm"), fault=inject.uplink(inject.core(lambda w: w * 1e6)), check=holds.as_absent),
    row("F32 weights returned unchanged", 0, (), UNCHANGED, check=holds.stays_put),
    row("F32 weights returned unchanged, with privacy", 0, (), (*UNCHANGED, PRIVATE), check=holds.stays_put),
]  # fmt: skip

DATA = [
    resumed("F29 pickles for checkpoints", 4, ("all 2 checkpoints",), begin.pickled(APPLE), check=holds.unharmed),
    custom("F29 pickled objects in an archive", 3, ("own.npz", "pickle is never read"), NPZ, begin.pickled_arrays, holds.unharmed),
    custom("F30 clients named like paths, of 300 letters, alike", 0, (), SITES, PATHS, holds.nothing_outside),
    custom("F33 a client with one sample", 0, (), SITES, LONE, holds.trains),
    custom("F33 a client with one sample that has to validate models", 3, ("lone", "validation"), ("fedfomo", *SITES[1:]), LONE),
    custom("F34 a client with one class", 0, (), SITES, begin.sites({"a": 20, "b": 20}, lambda i, k: k % 2 if i else 0), holds.nulls),
    custom("F35 clients without samples", 3, ("client",), ("fedavg", "data=digits", "data.train_limit=20", "clients=30"), do_nothing),
    custom("F36 negative labels", 3, ("own.npz", "20 labels", "first -1 in row 0"), NPZ, begin.arrays(x=X, y=Y - 1)),
    custom("F36 a label between two numbers", 3, ("own.npz", "2.0000001 in row 2"), NPZ, begin.arrays(x=X, y=np.where(np.arange(60) == 2, 2.0000001, Y))),
    custom("F36 labels from 1 to 3 of classes 0 to 2", 3, ("own.npz", "first 3 in row 2"), (*NPZ, "data.classes=['a', 'b', 'c']"), begin.arrays(x=X, y=Y + 1)),
    custom("F36 labels of text", 3, ("own.npz",), NPZ, begin.arrays(x=X, y=np.array(["a", "b", "c"])[Y])),
    custom("F37 bytes as pixels", 0, (), NPZ, begin.arrays(x=PIXELS, y=Y), holds.as_floats),
    custom("F38 one NaN among the inputs", 3, ("own.npz", "first row 17"), NPZ, begin.arrays(x=np.where(np.arange(240).reshape(60, 4) == 70, np.nan, X), y=Y)),
    custom("F39 an archive without its end", 3, ("own.npz",), NPZ, begin.truncated(x=X, y=Y)),
    custom("F39 a line with fewer cells", 3, ("own.csv: line 3: 2 cells, not 3",), (*CSV, "clients=2"), begin.table("a,b,y\n1,2,0\n1,2\n")),
    custom("F39 a table with faults in several columns and lines", 3, ("3 problems", ("column a: 2 of "
                                                                                  "3"), "column b: 1 of 3 cells are gaps", "label column y", "data.drop_columns"), (*CSV, "clients=2"), begin.table("a,b,y\nu,2,0\n1,,0\nv,3,\n")),
    custom("F39 several damaged images, and files of other kinds", 3, ("5 problems", "a/0.png", "a/1.png", "a/2.png", "a/scan.dcm", "b: no image"), IMAGES, begin.images),
    custom("F39 a pipe for a table", 3, ("own.csv (it is a pipe",), (*CSV, "clients=2"), begin.pipe),
    custom("F39 a label of 5,000 digits", 0, ("classes with fewer than 5 rows",), (*CSV, "clients=2", "lr=0.1"), begin.table("a,b,y\n" + "".join(f"{k},2,{'9' * 5000 if k == 7 else k % 2}\n" for k in range(60))), holds.trains),
    custom("F39 a partition nested 100,000 deep", 3, ("own.json is not a partition file",), ("fedavg", "data=digits", "partition.name=file", "partition.path={here}/own.json"), lambda world: (world.folder / "own.json").write_text("[" * 100_000)),
    custom("F29 PostScript with the name of an image", 3, ("a/0.png (it is not PNG",), IMAGES, begin.postscript, holds.unwritten),
    custom("F39 fewer labels than inputs", 3, ("own.npz",), NPZ, begin.arrays(x=X, y=Y[:-1])),
]  # fmt: skip

RUNNING = [
    row("F40 a learning rate 100,000 times too large", 8, ("client", "round", "step", "lower lr"), (*APPLE, "lr=1e4", "momentum=0.9"), check=holds.finite),
    row("F41 Ctrl-C between training and commit", 130, ("error[INTERRUPTED]", "--resume"), fault=inject.stopped(3), check=holds.resumes),
    row("F45 the clock jumps by a day at every look", 0, fault=inject.jumping_clock),
    resumed("F48 ledgers rolled back", 9, ("ledger", "restore"), begin.ledgers(HIDDEN, lambda p: p.write_text("".join(p.read_text().splitlines(keepends=True)[:3]))), arguments=HIDDEN, check=holds.stops),
    resumed("F48 ledgers missing", 9, ("ledger", "restore"), begin.ledgers(HIDDEN, Path.unlink), arguments=HIDDEN, check=holds.stops),
    resumed("F48 keys and ledgers missing", 9, ("ledger", "restore"), begin.ledgers(HIDDEN, lambda p: shutil.rmtree(p.parent)), arguments=HIDDEN, check=holds.stops),
    resumed("F48 ledgers changed", 9, ("ledger", "line 1", "restore"), begin.ledgers(HIDDEN, lambda p: p.write_text(p.read_text().replace("0", "1", 1))), arguments=HIDDEN, check=holds.stops),
]  # fmt: skip

ROWS = [*STORAGE, *UPLINKS, *DATA, *RUNNING]
