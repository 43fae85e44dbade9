"""Data sets of the Hugging Face Hub in its cache: what is read is what the files hold, at one commit."""

import io
import json
import socket
from importlib import reload
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pomona
from pomona import Config
from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, hub, read

pa = pytest.importorskip("pyarrow", reason="needs the extra tables")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra tables")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = ("cat", "dog")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub, and no network."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it asked the network"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def repository(cache, files, features=None):
    """A repository in the layout of the cache, whose files are links, as there."""
    folder = cache / "datasets--mine--things"
    for k, (name, columns) in enumerate(files.items()):
        blob, link = folder / "blobs" / str(k), folder / "snapshots" / COMMIT / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        note = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
        pq.write_table(pa.table(columns).replace_schema_metadata(note), blob)
        link.symlink_to(blob)


def section(**changes):
    return {"repository": "mine/things", "revision": COMMIT, "label_column": "label", **changes}


def rows(*values):
    return {"size": list(map(float, values)), "label": [int(v) % 2 for v in values]}


def pictures(*values):
    """Gray PNGs 3 x 2 with one value each, as the Hub stores them."""
    cells = []
    for value in values:
        buffer = io.BytesIO()
        Image.fromarray(np.full((2, 3), value, np.uint8)).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": f"{value}.png"})
    return {"image": cells, "label": [v % 2 for v in values]}


LABEL = {"label": {"names": list(NAMES), "_type": "ClassLabel"}}


def test_a_table_has_the_rows_of_its_parts_and_the_classes_of_its_note(cache):
    files = {
        "data/train-00001-of-00002.parquet": rows(4, 5),
        "data/train-00000-of-00002.parquet": rows(1, 2, 3),
        "data/test-00000-of-00001.parquet": rows(6, 7),
        "data/validation-00000-of-00001.parquet": rows(8),
    }
    repository(cache, files, LABEL)
    dataset = read(data_settings(**section()))
    assert dataset.x[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (dataset.n_train, dataset.classes, dataset.name) == (5, NAMES, f"mine/things@{COMMIT}")
    assert dataset.y.tolist() == [1, 0, 1, 0, 1, 0, 1]
    validated = read(data_settings(**section(test_part="validation")))
    assert validated.x[validated.n_train :, 0].tolist() == [8]


def test_classes_that_are_set_stay(cache):
    repository(cache, {"train.parquet": rows(1, 2)}, LABEL)
    assert read(data_settings(**section(classes=["1", "0"]))).classes == ("1", "0")
    assert read(data_settings(**section())).n_train == 2


@pytest.mark.parametrize(
    "features",
    [None, {"label": {"names": ["a", "a"]}}, {"label": {"names": [1, 2]}}, {"label": 3}, ["label"]],
)
def test_without_a_usable_note_classes_are_those_of_the_cells(features, cache):
    repository(cache, {"train.parquet": rows(1, 2)}, features)
    assert read(data_settings(**section())).classes == ("0", "1")


def test_texts_and_owners_are_columns(cache):
    columns = {"text": ["a b", "b c", "c"], "label": ["x", "y", "x"], "who": ["p", "q", "p"]}
    repository(cache, {"train.parquet": columns})
    dataset = read(data_settings(**section(text_columns=["text"], client_column="who")))
    assert dataset.words == ("a", "b", "c")
    assert dataset.owners.names == ("p", "q")


def test_images_are_the_pixels_of_their_cells_without_rows_that_have_no_label(cache):
    columns = pictures(10, 11, 12, 13)
    columns["label"] = [None if k == 1 else label for k, label in enumerate(columns["label"])]
    repository(cache, {"train.parquet": columns, "test.parquet": pictures(21)}, LABEL)
    dataset = read(data_settings(**section(image_column="image", unlabelled="drop")))
    assert dataset.x.shape == (4, 2, 3, 1)
    assert dataset.x[:, 0, 0, 0].tolist() == [10, 12, 13, 21]
    assert (dataset.y.tolist(), dataset.n_train, dataset.classes) == ([0, 0, 1, 1], 3, NAMES)


def test_a_run_records_repository_and_commit_and_needs_the_rows_only_to_go_on(cache, tmp_path):
    repository(cache, {"train.parquet": pictures(*range(40))}, LABEL)
    data = section(image_column="image")
    pomona.run(
        Config(
            method="fedavg", data=data, model="logistic", clients=2, rounds=1, lr=0.1, workers=1
        ),
        tmp_path / "run",
    )
    recorded = pomona.load(tmp_path / "run").config["data"]
    assert (recorded["repository"], recorded["revision"]) == ("mine/things", COMMIT)


def test_a_picture_that_is_none_is_named_by_its_row(cache):
    columns = pictures(1, 2)
    columns["image"][1]["bytes"] = b"no picture"
    repository(cache, {"train.parquet": columns})
    with pytest.raises(DataError, match=r"file-0-row-2\.png"):
        read(data_settings(**section(image_column="image")))


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        ({"train.parquet": 0}, {"repository": ""}, "set data.repository"),
        ({"train.parquet": 0}, {"repository": "../a"}, "not a repository"),
        ({"train.parquet": 0}, {"revision": "main"}, f"a branch may move, .*here are: {COMMIT}"),
        ({"train.parquet": 0}, {"revision": ""}, "no revision"),
        ({"train.parquet": 0}, {"subset": "../.."}, "has no Parquet files in"),
        ({"train.parquet": 0}, {"test_part": "dev"}, "no files of data.test_part = dev"),
        ({"rows.parquet": 0}, {}, "no file is for training"),
        ({"train-test.parquet": 0}, {}, "files are both"),
        ({"a/train.parquet": 0, "b/train.parquet": 0}, {}, "subsets a, b; set data.subset"),
    ],
)  # fmt: skip
def test_what_is_not_said_exactly_is_refused(files, changes, message, cache):
    repository(cache, {name: rows(1, 2) for name in files})
    with pytest.raises((ConfigError, DataError), match=message):
        read(data_settings(**section(**changes)))


def test_a_subset_is_a_folder(cache):
    repository(cache, {"a/train.parquet": rows(1, 2), "b/train.parquet": rows(3, 4)})
    assert read(data_settings(**section(subset="b"))).x[:, 0].tolist() == [3, 4]


def test_what_is_missing_is_named_with_the_command_that_fetches_it(cache):
    commit = "f" * 40
    with pytest.raises(
        DataError, match=f"hf download mine/things --repo-type dataset --revision {commit}"
    ):
        read(data_settings(**section(revision=commit)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_tools_look(names, expected, monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert hub.cache() == Path(expected)
    theirs = pytest.importorskip("huggingface_hub.constants", reason="needs the extra transformers")
    assert Path(reload(theirs).HF_HUB_CACHE) == Path(expected)
