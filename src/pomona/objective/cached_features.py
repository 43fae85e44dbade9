"""Features that a network's frozen part computes, once for each sample: training a head costs what a head costs."""

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
    """The data set whose samples are features, float32, memory-mapped.

    A client's samples pass the network in batches of their own, in the client's order: what comes out depends neither
    on the number of workers nor on the other clients, to the last bit.

    Args:
        cut: of the network that the data is for.
        data: the samples.
        precision: ``bf16`` runs the network under autocast.
        workers: processes that compute; forked, so that the network is not copied.

    Raises:
        StorageError: no room on the disk.
        WorkerError: a process was lost.
    """
    shape = (*cut.shape[1:], cut.shape[0]) if len(cut.shape) > 2 else cut.shape  # channels last, as all data is held
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
    """Each client's samples in batches; a sample that several hold belongs to the first of them."""
    seen = torch.zeros(len(data.x), dtype=torch.bool, device=data.y.device)
    for held in zip(*(data.rows[split] for split in SPLITS), strict=True):
        rows = torch.cat(held)
        own = rows[~seen[rows]]
        seen[own] = True
        yield from own.split(EVALUATION_BATCH) if len(own) else ()
