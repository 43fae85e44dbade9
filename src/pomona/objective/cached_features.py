"""Cached features of a network's frozen part, computed once per sample, so that training a head is cheap."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, multiprocessing

from pomona.core.errors import WorkerError
from pomona.core.splits import SPLITS
from pomona.models.frozen_prefix import Cut
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.row_gradients import EVALUATION_BATCH, Precision
from pomona.storage.mapped_array import mapped


def cached(cut: Cut, data: DeviceDataset, precision: Precision, workers: int = 1) -> DeviceDataset:
    """Return the data set whose samples are features, float32, memory-mapped.

    A client's samples pass through the network in its own batches and order, so that results are bit-identical for any
    number of workers and any other clients.

    Args:
        cut: of the network for the data.
        data: the samples.
        precision: ``bf16`` runs the network under autocast.
        workers: number of processes; forked, so that the network is not copied.

    Raises:
        StorageError: no space on the disk.
        WorkerError: a process died.
    """
    shape = (*cut.shape[1:], cut.shape[0]) if len(cut.shape) > 2 else cut.shape  # channels last, as for all data
    held = mapped((len(data.x), *shape), np.float32, "features", "set model.cache_features = 'off'")
    features = torch.from_numpy(held)
    todo = list(batches(data))

    @torch.no_grad()
    def fill(own: Sequence[Tensor]) -> None:
        torch.set_num_threads(1)
        lower = torch.autocast(data.x.device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        for index in own:
            with lower:
                made = cut.features(data.gather(index)[0])
            features[index.cpu()] = (made.movedim(1, -1) if len(shape) > 2 else made).float().cpu()

    if workers == 1 or data.x.device.type != "cpu":
        fill(todo)
    else:
        _forked(fill, [todo[k::workers] for k in range(workers)])
    return replace(data, x=features.to(data.x.device), shift=None, scale=None)


def _forked(fill: Callable[[Sequence[Tensor]], None], parts: Sequence[Sequence[Tensor]]) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fill, args=(part,), daemon=True) for part in parts if part]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise WorkerError("a process that computed features was lost; run again with fewer workers")


def batches(data: DeviceDataset) -> Iterator[Tensor]:
    """Yield each client's samples in batches; shared samples belong to the first client that has them."""
    seen = torch.zeros(len(data.x), dtype=torch.bool, device=data.y.device)
    for held in zip(*(data.rows[split] for split in SPLITS), strict=True):
        rows = torch.cat(held)
        own = rows[~seen[rows]]
        seen[own] = True
        yield from own.split(EVALUATION_BATCH) if len(own) else ()
