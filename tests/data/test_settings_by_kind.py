"""Every kind of data takes the settings that it reads, and no others: all settings times all
kinds.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.core.membership import Membership
from pomona.core.toml import flat
from pomona.core.training_settings import OPTIMIZERS, Adam, Stop
from pomona.data import data_settings, from_arrays, from_frame, hub_dataset, read
from pomona.data.axes import CustomReader, InMemory, sources
from pomona.data.catalogue import CATALOGUE
from pomona.data.formats import transfer
from pomona.data.images import image_stack
from pomona.data.section import group_of
from pomona.partition import divide

ROWS = "age,sex,text,died,days,site,who,day\n" + "".join(
    (
        f"{20 + k},{'fm'[k % 2]},word{k % 3} "
        f"again,{k // 2 % 2},{k + 1},{'ab'[k % 2]},p{k},2024-03-{k + 1:02}\n"
    )
    for k in range(20)
)
VALUES = {
    "name": "", "split": "pooled", "test_share": 0.3, "validation_share": 0.1, "train_limit": 9, "test_limit": 9,
    "memory_share": 0.5, "dir": "folder", "path": "rows", "clients": [{"name": "a", "train": "a"}], "resize": 4,
    "normalise": "training", "window": (1, 2), "skip_bad": True, "folders": ["class"], "classes": ("a", "b"), "targets": "regression",
    "intervals": 3, "time_edges": (1, 2), "label_above": 3, "separator": "tab", "decimal": "comma",
    "encoding": "cp1252", "header": True, "columns": ("a", "b"), "label_column": "a", "label_columns": ("a",),
    "unlabelled": "drop", "client_column": "a", "group_column": "a", "time_column": "a", "subgroup_column": "a",
    "drop_columns": ("a",), "keep_columns": ("a",), "missing": "median", "missing_values": {"*": (1,)},
    "censored": "limit", "categories": "encode", "category_share": 0.1, "category_limit": 9, "dates": ("a",),
    "fit": "client", "text_columns": ("a",), "vocabulary_size": 9, "sequence_length": 9,
    "tokenizer": "folder", "repository": "a/b", "revision": "0" * 40, "subset": "a", "train_part": "a", "test_part": "b",
    "image_column": "a", "duplicates": "drop", "format": "", "memory": True, "value_labels": "codes", "sheet": "a", "header_row": 2,
}  # fmt: skip
REQUIRED = {
    "intervals": {"targets": "survival"}, "time_edges": {"targets": "survival"},
    "category_share": {"categories": "encode"}, "category_limit": {"categories": "encode"},
}  # fmt: skip
SOURCES = {
    "path": lambda suffix: {"path": f"rows{suffix}"},
    "clients": lambda suffix: {"clients": [{"name": "a", "train": f"a{suffix}"}]},
    "repository": lambda _: {"repository": "a/b"},
    "memory": lambda _: {"memory": True},
}
SUFFIXES = {"csv": ".csv", "parquet": ".parquet", "npz": ".npz", "list": ".csv"}
SECTIONS = {
    **{name: {"name": name} for name in CATALOGUE},
    **{
        f"{s.content} {s.location} {s.format}": {
            "name": s.content,
            **SOURCES[s.location](SUFFIXES.get(s.format, "")),
            **({"format": s.format} if s.format and s.format not in SUFFIXES else {}),
        }
        for s in sources()
    },
    "own code": {"name": "mine:rows"},
}


def test_the_table_below_has_every_setting():
    assert VALUES.keys() == CustomReader.model_fields.keys()


@pytest.mark.parametrize("source", SECTIONS)
def test_a_setting_of_another_kind_is_refused_by_its_name_and_all_others_are_taken(source):
    section = SECTIONS[source]
    cls = group_of(section)
    for key, default in product(set(VALUES) - {"name", *section}, (False, True)):
        value = CustomReader.model_fields[key].default if default else VALUES[key]
        if key in {"clients", "repository", "memory", "path", "format"} - cls.model_fields.keys():
            continue  # they say where the data are
        settings = {"data": {**section, key: value}}
        if key in cls.model_fields:
            required = REQUIRED.get(key, {})
            settings["data"] |= required
            assert key in resolve(settings).tree()["data"] or value is None
            if required:
                incomplete = {**section, key: value}
                with pytest.raises(ConfigError, match=f"^data.{key}: only for "):
                    resolve({"data": incomplete})
                assert key not in resolve({"data": section}).tree()["data"]
        else:
            with pytest.raises(
                ConfigError, match=rf"^data\.{key}: no setting of .*; remove it, it is for "
            ) as fault:
                resolve(settings)
            assert "\n" not in str(fault.value)


def test_all_misplaced_and_wrong_settings_are_named_at_once():
    with pytest.raises(ConfigError) as fault:
        resolve(
            {
                "data": {
                    "name": "arrays",
                    "window": [1, 2],
                    "header": True,
                    "resize": 0,
                    "pth": "a",
                },
                "rounds": 0,
            }
        )
    message = str(fault.value)
    assert all(
        key in message
        for key in ("data.window: ", "data.header: ", "data.resize = 0", "'data.pth'", "rounds = 0")
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_are_settings_of_the_optimizers_that_have_them(name):
    for key in Adam.model_fields.keys() - {"name"}:
        section = {"optimizer": {"name": name, key: Adam.model_fields[key].default}}
        if key in OPTIMIZERS[name].model_fields:
            assert resolve(section).optimizer.name == name
        else:
            with pytest.raises(
                ConfigError,
                match=f"^optimizer.{key}: only for adam and adamw, the optimizer is sgd",
            ):
                resolve(section)


@pytest.mark.parametrize(
    ("section", "record", "required"),
    [
        ("membership", Membership, {"unseen": (1,)}),
        ("", Config, {"lr_schedule": "steps", "lr_milestones": (2,)}),
    ],
)
def test_a_setting_without_the_one_that_it_belongs_to_is_refused_also_with_its_default(
    section, record, required
):
    def tree(settings):
        return {section: settings} if section else settings

    for key in record().idle():
        default = record.model_fields[key].default
        with pytest.raises(ConfigError, match=f"^{section}{'.' * bool(section)}{key}: only for "):
            resolve(tree({key: default}))
        assert (
            flat(resolve(tree({key: default, **required})).tree())[
                f"{section}.{key}".removeprefix(".")
            ]
            == default
        )
        assert f"{section}.{key}".removeprefix(".") not in flat(Config().tree())


def test_a_gain_is_for_runs_that_stop_early():
    with pytest.raises(ConfigError, match=r"stop\.patience must be set"):
        resolve({"stop": {"min_gain": Stop.model_fields["min_gain"].default}})
    assert resolve({"stop": {"patience": 3}}).stop == Stop(patience=3)


@pytest.mark.parametrize("source", SECTIONS)
def test_written_settings_are_read_as_the_same(source):
    config = resolve({"data": SECTIONS[source]})
    assert resolve(config.tree()) == config


def spied(settings):
    """The same settings, and the set of those that are looked at."""
    names = set()

    def record_name(self, name):
        if name in type(self).model_fields:
            names.add(name)
        return object.__getattribute__(self, name)

    cls = type(settings)
    spy = type(cls.__name__, (cls,), {"__getattribute__": record_name, "__module__": __name__})
    copied = spy.model_construct(**{key: getattr(settings, key) for key in cls.model_fields})
    if isinstance(settings, InMemory):
        copied._content = settings._content
    return copied, names


def written(folder):
    """Small own data of every form, by name."""
    (folder / "a.csv").write_text(ROWS)
    draw = np.random.default_rng(0)
    np.savez(
        folder / "a.npz", x=draw.integers(0, 255, (20, 4, 4, 1), np.uint8), y=np.arange(20) % 2
    )
    np.savez(
        folder / "t.npz",
        x=draw.normal(size=(20, 3)),
        y=np.column_stack([np.arange(1.0, 21), np.arange(20) % 2]),
    )
    for k in range(8):
        path = folder / "images" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (4, 4), np.uint8)).save(path)
    listed = "".join(f"images/{'ab'[k % 2]}/{k}.png,{'ab'[k % 2]}\n" for k in range(8))
    (folder / "m.csv").write_text(f"path,label\n{listed}")
    (folder / "idx").mkdir()
    images = draw.integers(0, 255, (20, 4, 4), np.uint8)
    labels = (np.arange(20) % 2).astype(np.uint8)
    (folder / "idx" / "train-images-idx3-ubyte").write_bytes(
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4) for n in images.shape) + images.tobytes()
    )
    (folder / "idx" / "train-labels-idx1-ubyte").write_bytes(
        b"\0\0\x08\x01" + (20).to_bytes(4) + labels.tobytes()
    )
    times = {"targets": "survival", "label_columns": ("days", "died")}
    table = {
        "client_column": "site",
        "drop_columns": ("text", "who"),
        "categories": ("sex",),
        "dates": ("day",),
    }
    texts = {"label_column": "died", "text_columns": ("text",)}
    files = [{"name": "a", "train": folder / "a.csv"}]
    commit = {"repository": "a/b", "revision": "0" * 40}
    rows = pd.read_csv(folder / "a.csv")
    rows["shot"] = [(folder / "images" / "a" / "0.png").read_bytes()] * len(rows)
    for subset, drop in (("rows", ["shot"]), ("shots", ["text"])):
        path = folder / "datasets--a--b/snapshots" / commit["revision"] / subset / "train.parquet"
        path.parent.mkdir(parents=True)
        rows.drop(columns=drop).to_parquet(path)
    hub = {**commit, "subset": "rows"}
    return {
        "digits": [{}],
        "csv": [
            {"path": folder / "a.csv", "label_column": "died", **table},
            {"path": folder / "a.csv", **times, **table},
        ],
        "csv-text": [
            {"path": folder / "a.csv", **texts, "client_column": "site"},
            {"path": folder / "a.csv", **times, "text_columns": ("text",)},
        ],
        "npz": [{"path": folder / "a.npz"}, {"path": folder / "t.npz", "targets": "survival"}],
        "arrays": [
            from_arrays(draw.integers(0, 255, (20, 4, 4), np.uint8), np.arange(20) % 2),
            from_arrays(**np.load(folder / "t.npz"), targets="survival"),
        ],
        "frame": [
            from_frame(pd.read_csv(folder / "a.csv"), label_column="died", **table),
            from_frame(pd.read_csv(folder / "a.csv"), **times, **table),
        ],
        "folder": [{"path": folder / "images"}],
        "manifest": [{"path": folder / "m.csv"}],
        "idx": [{"path": folder / "idx"}],
        "clients": [
            {
                "clients": files,
                **times,
                "drop_columns": ("text", "who", "site"),
                "categories": ("sex",),
                "dates": ("day",),
            }
        ],
        "clients texts": [{"clients": files, **times, "text_columns": ("text",)}],
        "clients npz": [
            {"clients": [{"name": "a", "train": folder / "t.npz"}], "targets": "survival"}
        ],
        "hub table": [{**hub, "label_column": "died", **table}, {**hub, **times, **table}],
        "hub texts": [
            {**hub, **texts, "client_column": "site"},
            {**hub, **times, "text_columns": ("text",)},
        ],
        "hub images": [
            {**commit, "subset": "shots", "image_column": "shot", **label}
            for label in ({"label_column": "died", "client_column": "site"}, times)
        ],
    }


NAMES = {
    "csv-text": {"name": "text"},
    "manifest": {"name": "images"},
    "idx": {"name": "images", "format": "idx"},
}
SELECTORS = {"name", "format", "memory"}  # by which the section is read


@pytest.mark.parametrize(
    "source",
    [
        "digits",
        "csv",
        "csv-text",
        "npz",
        "arrays",
        "frame",
        "folder",
        "manifest",
        "idx",
        "clients",
        "clients texts",
        "clients npz",
        "hub table",
        "hub texts",
        "hub images",
    ],
)
def test_a_kind_of_data_looks_at_each_of_its_settings(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    # in this process, where reads of settings are seen
    for module in (hub_dataset, image_stack, transfer):
        monkeypatch.setattr(module, "read_in_child", lambda work, *_: work())
    names, settings = set(), None
    for section in written(tmp_path)[source]:
        settings = (
            section
            if isinstance(section, InMemory)
            else data_settings(**{**NAMES.get(source, {}), **section})
        )
        spy, names_of_one = spied(settings)
        dataset = read(spy)
        dataset = dataset.learn(dataset, np.arange(dataset.n_train)) if dataset.learn else dataset
        for split in ("official", "pooled"):
            assert (
                len(divide(dataset, spy.model_copy(update={"split": split}), None, 1, 0).clients)
                == 1
            )
        names |= names_of_one
    assert type(settings).model_fields.keys() - names - SELECTORS == set()
