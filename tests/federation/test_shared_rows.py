"""Models with equal bytes are in memory once: the pool alone, and the clients of a whole run."""

import gc

import pytest
import torch
from safetensors.torch import load_file

import pomona
from pomona import simulation
from pomona.storage.checkpoint import newest
from pomona.storage.equal_tensors import MIN_SHARED, SharedRows
from pomona.storage.mapped_tensor import with_rows
from problems import tiny

pytestmark = pytest.mark.long

SIZE = 2 * MIN_SHARED
SETTINGS = {"model": {"name": "mlp", "hidden": [64]}, "rounds": 3, "workers": 1}


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_equal_bytes_share_memory_in_any_shape():
    rows, tensor = SharedRows(), torch.randn(SIZE)
    assert rows.shared(tensor) is tensor
    assert rows.shared(tensor.clone()) is tensor
    wide = rows.shared(tensor.clone().view(2, MIN_SHARED))
    assert wide.shape == (2, MIN_SHARED)
    assert address(wide) == address(tensor)
    assert torch.equal(wide.flatten(), tensor)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
def test_numbers_come_back_as_they_were(dtype):
    rows, values = SharedRows(), torch.randn(SIZE).to(dtype)
    first, second, different = (
        rows.shared(t) for t in (values.clone(), values.clone(), torch.randn(SIZE).to(dtype))
    )
    assert address(first) == address(second)
    assert torch.equal(second, values)
    assert address(different) != address(first) or torch.equal(different, first)


def test_only_the_very_same_bytes_count():
    rows, zeros, nan = SharedRows(), torch.zeros(SIZE), torch.full((SIZE,), torch.nan)
    swapped = torch.arange(SIZE).float()
    assert address(rows.shared(zeros)) != address(rows.shared(-zeros))  # 0 == -0
    assert address(rows.shared(nan)) == address(rows.shared(nan.clone()))  # nan != nan
    rows.shared(swapped)
    assert torch.equal(rows.shared(swapped.flip(0)), swapped.flip(0))  # of the same sum
    ints = torch.zeros(SIZE, dtype=torch.int32)
    assert rows.shared(ints).dtype == torch.int32


@pytest.mark.parametrize("size", [0, 1, MIN_SHARED - 1])
def test_small_ones_are_left_alone(size):
    rows = SharedRows()
    assert (
        address(rows.shared(torch.ones(size))) != address(rows.shared(torch.ones(size))) or not size
    )


def test_nothing_is_kept_alive():
    rows = SharedRows()
    rows.shared(torch.ones(SIZE))
    gc.collect()
    assert not len(rows._tensors)


def test_rows_in_all_places_are_taken_as_they_are():
    W, rows = torch.zeros(3, 4), torch.randn(3, 4)
    assert with_rows(W, (0, 1, 2), rows) is rows
    assert torch.equal(with_rows(W, (1, 0, 2), rows), rows[[1, 0, 2]])
    replaced = with_rows(W, (0, 2), rows[:2])
    assert torch.equal(replaced, torch.stack([rows[0], W[1], rows[1]]))
    assert torch.equal(with_rows(W, (0, 1, 2), rows[:1].expand(3, -1)), rows[:1].repeat(3, 1))


# Models of each client at the end: FedAvg the trained one; FedALA beside it the mixture received;
# Ditto the local and the personal one; APPLE core and personal model. Everybody's global model
# counts once.
MODELS_PER_CLIENT = {"fedavg": 1, "fedala": 2, "ditto": 2, "apple": 2}


@pytest.mark.parametrize("method", MODELS_PER_CLIENT)
def test_at_the_end_of_a_run_each_model_is_in_memory_and_in_the_checkpoint_once(
    method, monkeypatch, tmp_path
):
    transports, build = [], simulation.local_transport
    monkeypatch.setattr(
        simulation,
        "local_transport",
        lambda *arguments: transports.append(build(*arguments)) or transports[0],
    )
    config = tiny(method, **SETTINGS)
    result = pomona.run(config, tmp_path / "run")
    runtime = transports[0]._clients
    tensors = [
        t
        for i in range(config.clients)
        for t in runtime.store.stored(i).values()
        if t.numel() >= MIN_SHARED
    ]
    d = sum(t.numel() for t in result.models[0].values())
    memory = {address(t): t.untyped_storage().nbytes() for t in tensors}
    models, has_global = MODELS_PER_CLIENT[method] * config.clients, method != "apple"
    assert sum(memory.values()) == 4 * d * (models + has_global)
    stored = load_file(newest(tmp_path / "run" / "checkpoints")[0].path)
    sizes = [t.nbytes for t in stored.values() if t.numel() >= MIN_SHARED]
    assert sum(sizes) == 4 * d * (models + 2 * has_global)  # the server has a new one


@pytest.mark.parametrize("workers", [1, 2])
def test_results_in_memory_hold_everybodys_model_once(workers):
    result = pomona.run(tiny("fedavg", **{**SETTINGS, "workers": workers}))
    (first, *other_models) = result.models.values()
    assert other_models
    assert all(
        address(t) == address(first[k])
        for model in other_models
        for k, t in model.items()
        if t.numel() >= MIN_SHARED
    )
