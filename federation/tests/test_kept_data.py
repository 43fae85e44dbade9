"""A silo's data in its worker: what is kept, what ends it, and that results do not change."""

import os

import numpy as np
import pytest

from federation_in_process import settings
from pomona.data import data_settings
from pomona_federation.agreement import Federation
from pomona_federation.silo import kept_data
from pomona_federation.silo.kept_data import DataCache, DataRequest, own_data, size
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_scenario import own_scenario
from pomona_federation.task_settings import TaskSettings
from real_federation import check, finished

TASK = TaskSettings(kind="table", input_shape=(2,), classes=("a", "b"))
ROWS = "x,y,label\n" + "".join(f"{k},{k % 3},{'ab'[k % 2]}\n" for k in range(40))


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit with a one-hour-old CSV, whose data this process keeps."""
    (tmp_path / "state").mkdir()
    write_settings(tmp_path)
    written(tmp_path, ROWS)
    monkeypatch.setattr(kept_data, "_CACHE", DataCache(tmp_path))
    monkeypatch.setattr(kept_data, "SETTLED", 0.0)
    return tmp_path


def write_settings(kit, **changes):
    lines = "".join(f"{key} = {value}\n" for key, value in changes.items())
    (kit / "silo.toml").write_text(
        f'name = "north"\n{lines}[data]\nname = "table"\npath = "rows.csv"\nlabel_column = "label"\n'
    )


def written(kit, text):
    (kit / "rows.csv").write_text(text)


def settings_of(kit):
    return SiloFile.load(kit / "silo.toml").data


def data_twice(kit):
    """The data found by the next message's process, after one that has read and a refresh of the
    worker.
    """
    first = own_data(settings_of(kit), TASK)
    kept_data._CACHE.refresh()
    return first, own_data(settings_of(kit), TASK)


def test_what_one_message_has_read_the_next_one_finds(kit):
    first, second = data_twice(kit)
    _, third = data_twice(kit)
    assert first is not second
    assert second is third
    for array, other_array in ((first.x, second.x), (first.y, second.y)):
        assert array.dtype == other_array.dtype
        assert np.array_equal(array, other_array)
    assert first.fingerprint == second.fingerprint


SOURCES = {
    "a table": ('label_column = "label"', "rows.csv", TASK),
    "texts": (
        'label_column = "label"\ntext_columns = ["x"]\nsequence_length = 2',
        "rows.csv",
        TaskSettings(kind="text", input_shape=(2,), vocabulary=3, words=("1",), classes=("a", "b")),
    ),
    "arrays": ('classes = ["a", "b"]', "rows.npz", TASK),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("location", ["path", "clients"])
def test_tables_texts_and_arrays_are_kept_wherever_their_files_are_named(source, location, kit):
    lines, name, task = SOURCES[source]
    np.savez(kit / "rows.npz", x=np.eye(40, 2, dtype=np.float32), y=np.arange(40) % 2)
    file = (
        f'[[data.clients]]\nname = "n"\ntrain = "{name}"'
        if location == "clients"
        else f'path = "{name}"'
    )
    (kit / "silo.toml").write_text(f'name = "north"\n[data]\n{lines}\n{file}\n')
    first = own_data(settings_of(kit), task)
    assert kept_data._CACHE.refresh()
    second = own_data(settings_of(kit), task)
    assert second is kept_data._CACHE.cached[2]
    assert first.fingerprint == second.fingerprint


def longer(kit):
    written(kit, ROWS + "1,2,a\n")


def same_size(kit):
    written(kit, ROWS.replace("1,1,b", "7,1,b", 1))


def same_size_and_time(kit):
    file_times = (kit / "rows.csv").stat()
    same_size(kit)
    os.utime(kit / "rows.csv", ns=(file_times.st_atime_ns, file_times.st_mtime_ns))


def replaced(kit):
    (kit / "new").write_text(ROWS.replace("1,1,b", "7,1,b", 1))
    (kit / "new").replace(kit / "rows.csv")


@pytest.mark.parametrize("change", [longer, same_size, same_size_and_time, replaced])
def test_another_file_is_read_at_once_and_kept_from_then_on(change, kit):
    _, old = data_twice(kit)
    change(kit)
    changed = own_data(settings_of(kit), TASK)
    assert changed.x.sum() != old.x.sum(), "before the worker has looked"
    _, cached = data_twice(kit)
    assert cached.x.sum() == changed.x.sum()
    assert own_data(settings_of(kit), TASK) is cached


def test_other_settings_or_another_task_are_read_anew(kit):
    _, old = data_twice(kit)
    narrow = settings_of(kit).model_copy(update={"drop_columns": ("y",)})
    task = TASK.model_copy(update={"input_shape": (1,)})
    assert own_data(narrow, task).x.shape == (40, 1)
    kept_data._CACHE.refresh()
    assert own_data(narrow, task) is own_data(narrow, task)
    assert own_data(settings_of(kit), TASK) is not old


@pytest.mark.parametrize("megabytes", [0, 1])
def test_no_more_is_kept_than_is_allowed(megabytes, kit, monkeypatch):
    """40 rows of 2 numbers in float32, and as many labels in int64: 640 bytes; the file has
    more.
    """
    dataset, _ = data_twice(kit)
    assert size(dataset) == 40 * 2 * 4 + 40 * 8
    monkeypatch.setattr(kept_data, "MEGABYTE", size(dataset))
    write_settings(kit, keep_data_mb=megabytes)
    longer(kit)
    assert (data_twice(kit)[1] is own_data(settings_of(kit), TASK)) is False
    monkeypatch.setattr(kept_data, "MEGABYTE", size(dataset) * 4)
    write_settings(kit, keep_data_mb=megabytes)
    written(kit, ROWS)
    assert (data_twice(kit)[1] is own_data(settings_of(kit), TASK)) is bool(megabytes)


def test_a_file_that_was_just_written_is_not_kept_yet(kit, monkeypatch):
    monkeypatch.setattr(kept_data, "SETTLED", 3600.0)
    assert data_twice(kit)[1] is not own_data(settings_of(kit), TASK)
    monkeypatch.setattr(kept_data, "SETTLED", 0.0)
    assert data_twice(kit)[1] is own_data(settings_of(kit), TASK)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "own_module:data", "path": "rows.csv"},
        {"name": "table", "path": "rows.parquet"},
        {"name": "images", "path": "images"},
        {"clients": [{"name": "n", "train": "rows.csv", "test": "rows.parquet"}]},
        {"name": "digits"},
    ],
)
def test_own_code_and_what_may_start_threads_stay_out_of_the_worker(data, kit, monkeypatch):
    monkeypatch.chdir(kit)
    (kit / "rows.parquet").touch()
    request = DataRequest(data=data_settings(**data), task=TASK)
    assert request.files == ()
    kept_data._CACHE.post(request)
    assert not kept_data._CACHE.refresh()
    assert kept_data._CACHE.cached is None


def test_a_damaged_note_or_file_keeps_nothing_and_raises_nothing(kit):
    data_twice(kit)
    written(kit, "x,y\n1")
    kept_data._CACHE.refresh()
    assert kept_data._CACHE.cached is None
    (kit / "state" / kept_data.REQUEST_FILE).write_text("{")
    kept_data._CACHE.refresh()
    assert kept_data._CACHE.cached is None


def test_without_a_worker_nothing_is_noted(kit, monkeypatch):
    monkeypatch.setattr(kept_data, "_CACHE", None)
    own_data(settings_of(kit), TASK)
    assert not (kit / "state" / kept_data.REQUEST_FILE).exists()


def test_a_silos_scenario_is_the_same_from_what_is_kept(world, monkeypatch):
    """Of the files of a silo as a rehearsal writes them, NPZ."""
    federation = world.federation()
    kit = federation.kits / "silo-1"
    (kit / "state").mkdir(exist_ok=True)
    file = SiloFile.load(kit / "silo.toml")
    terms = Federation.load(kit / "federation.toml").kit_terms
    plain = own_scenario(file, terms, 0)
    monkeypatch.setattr(kept_data, "SETTLED", 0.0)
    monkeypatch.setattr(kept_data, "_CACHE", keeper := DataCache(kit))
    own_scenario(file, terms, 0)
    assert keeper.refresh()
    cached = own_scenario(file, terms, 0)
    assert cached.dataset is keeper.cached[2]
    assert cached.dataset.fingerprint == plain.dataset.fingerprint
    for client, twin in zip(plain.partition.clients, cached.partition.clients, strict=True):
        for rows in ("train", "validation", "test"):
            assert np.array_equal(getattr(client, rows), getattr(twin, rows))
    assert settings().seed == cached.config.seed


@pytest.mark.slow
def test_real_silos_read_their_data_once_and_compute_the_same(local, monkeypatch):
    """Whoever starts a round when the files are two seconds old finds them in memory."""
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)
    for name in local.names:
        log = (local.silo(name) / "state" / "logs" / "app.log").read_text()
        assert "the worker holds the data" in log
        (process,) = local.find("worker", name)
        assert process.num_threads() == 1


def test_a_note_of_another_release_is_replaced(kit):
    note = kit / "state" / kept_data.REQUEST_FILE
    note.write_text('{"of": "another release"}')
    assert not kept_data._CACHE.refresh()
    assert own_data(settings_of(kit), TASK) is not own_data(settings_of(kit), TASK)
    _, second = data_twice(kit)
    assert own_data(settings_of(kit), TASK) is second
