"""A scenario's data, resident as tensors and gathered by index: samples, or features of a network's
frozen part.

There is no loader, no collating, and no copy per client.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS, Targets
from pomona.core.errors import WorkerError
from pomona.core.lazy_torch import Tensor, torch
from pomona.data.dataset import Dataset
from pomona.models.settings import PatchSettings
from pomona.objective.augmentation import augment
from pomona.objective.batches import View
from pomona.objective.class_weights import masses
from pomona.partition.partition import Partition
from pomona.storage.mapped_array import mapped
from pomona.tasks import Task, task_of

if TYPE_CHECKING:
    from pomona.models.frozen_prefix import SplitNetwork

Precision = Literal["fp32", "bf16"]
# (outputs of a batch, targets) -> tensors, a row a sample
BatchFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
EVALUATION_BATCH = 512
Window = tuple[slice, ...]  # one slice per axis


def window(sides: Sequence[int], size: Sequence[int], draw: np.random.Generator | None) -> Window:
    """Return the position of a patch of this size in an image: uniformly drawn, or centred without
    a draw.
    """
    rooms = [side - length for side, length in zip(sides, size, strict=True)]
    offsets = [int(draw.integers(room + 1)) if draw else room // 2 for room in rooms]
    return tuple(slice(start, start + length) for start, length in zip(offsets, size, strict=True))


def crop_patches(t: Tensor, index: Tensor, windows: Sequence[Window]) -> Tensor:
    """Cut a patch from each row ``index`` (b,) of t (N, *sides, ...): (b, *size, ...)."""
    return torch.stack(
        [t[(row, *slices)] for row, slices in zip(index.tolist(), windows, strict=True)]
    )


def as_learned(y: Tensor) -> Tensor:
    """Convert targets for the loss: class numbers to int64, others unchanged."""
    return y if y.is_floating_point() else y.long()


@dataclass(frozen=True)
class DeviceDataset:
    """Inputs and targets of all clients, and the rows of each.

    Attributes:
        x: as in ``Dataset``: (N, H, W, C) or (N, D, H, W, C), (N, F) or (N, T).
        y: targets as a network learns them, by task: (N,) int64, (N, *S) uint8 or (N, ...) float32.
        shift, scale: float32, broadcast over the last axis; None for text.
        rows: split -> one int64 index tensor per client, in id order.
        targets: type of y.
        stored: targets as stored in the data set; None if they are learned unchanged.
        units: shift and scale of numeric targets, (1 or K,) float64; None for others.
        edges: as in ``Dataset``.
        weights: (N, K) class or label weights of each client's training; None if all are equal.
        augment: changes of training images, that ``augmentation.parse`` accepts.
        patch: patch size for training on images with masks; None for whole images.
        clustered: (split, client) with several samples of one group, e.g. rows of one patient.
        groups: (N,) int64 number of each sample's group, if there are groups; those of different
            owners differ.
    """

    x: Tensor
    y: Tensor
    shift: Tensor | None
    scale: Tensor | None
    rows: dict[str, list[Tensor]]
    targets: Targets
    stored: Tensor | None = None
    units: tuple[Tensor, Tensor] | None = None
    edges: tuple[float, ...] = ()
    weights: Tensor | None = None
    augment: tuple[str, ...] = ()
    patch: PatchSettings | None = None
    clustered: frozenset[tuple[str, int]] = frozenset()
    groups: Tensor | None = None

    @classmethod
    def build(
        cls, dataset: Dataset, partition: Partition, targets: Targets, device: str = "cpu"
    ) -> "DeviceDataset":
        """Move a data set and its partition to a device; on a CPU a memory-mapped array stays on
        disk.
        """
        text = dataset.kind == "text"
        shift, scale = (
            None if text else torch.tensor(v, dtype=torch.float32).to(device)
            for v in (dataset.shift, dataset.scale)
        )
        task = task_of(targets, dataset.edges)
        learned = task.learned(dataset.y, dataset)
        x, y = (torch.from_numpy(np.asarray(a)).to(device) for a in (dataset.x, learned))
        rows = {
            s: [torch.from_numpy(getattr(c, s)).to(device) for c in partition.clients]
            for s in SPLITS
        }
        stored = (
            None if learned is dataset.y else torch.from_numpy(np.asarray(dataset.y)).to(device)
        )
        units = None
        if task.standardised:
            target_shift, target_scale = (
                torch.tensor(v).double().to(device)
                for v in (dataset.target_shift, dataset.target_scale)
            )
            units = target_shift, target_scale
        groups = groups_of(dataset)
        return cls(
            x,
            y,
            shift,
            scale,
            rows,
            targets,
            stored,
            units,
            dataset.edges,
            clustered=clustered(groups, partition),
            groups=None if groups is None else torch.from_numpy(groups).to(device),
        )

    def class_counts(self, client: int) -> Tensor | None:
        """Return the training samples (pixels, of masks) per class, up to the client's last; None
        without classes.
        """
        if self.targets not in {"classes", "segmentation"}:
            return None
        return torch.bincount(self.y[self.rows["train"][client]].flatten())

    @property
    def task(self) -> Task:
        """Task of the targets."""
        return task_of(self.targets, self.edges)

    def in_units(
        self, outputs: Tensor, targets: Tensor, client: int, split: str
    ) -> tuple[Tensor, Tensor]:
        """Convert outputs (n, K) on a client's split, and the targets, to the units of the data
        set.
        """
        truth = targets if self.stored is None else self.stored[self.rows[split][client]]
        if self.units is None:
            return outputs, truth
        shift, scale = self.units
        return outputs.double().mul(scale).add(shift), truth

    def target(self, index: Tensor) -> Tensor:
        """Return the targets of rows ``index`` (b,) for the loss: int64 or float32."""
        return as_learned(self.y.index_select(0, index))  # on a CPU, much faster than y[index]

    def gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return model inputs and targets of rows ``index`` (b,).

        Inputs are (b, C, H, W) or (b, C, D, H, W) channels-last, (b, F) or (b, T).
        """
        # On a CPU index_select is much faster than x[index].
        return self._as_input(_selected(self.x, lambda x: x.index_select(0, index))), self.target(
            index
        )

    def _as_input(self, x: Tensor) -> Tensor:
        """Convert samples to network input."""
        if self.shift is not None and self.scale is not None:
            # converts uint8 to float32 in the same pass
            x = torch.sub(x, self.shift).div_(self.scale)
        return x.movedim(-1, 1) if x.dim() > 3 else x

    def batchwise(
        self,
        batches: Iterable[Tensor],
        forward: Callable[[Tensor], Tensor],
        function: BatchFunction,
    ) -> tuple[Tensor, ...]:
        """Apply a function to the outputs ``forward(index)`` and targets of parts; () for no
        samples.
        """
        results = [function(forward(index), self.target(index)) for index in batches if len(index)]
        return tuple(torch.cat(tensors) for tensors in zip(*results, strict=True))

    @property
    def plain(self) -> bool:
        """Whether training uses the samples unchanged."""
        return self.weights is None and not self.augment and self.patch is None

    def training_view(self, index: Tensor, view: View | None) -> tuple[Tensor, Tensor]:
        """Return ``gather`` with a client's training view of these rows; the targets of weighted
        classes are masses.

        Without a view nothing is drawn or weighted, and patches are centred.
        """
        random = view is not None and (self.augment or self.patch)
        draws = []
        if view and random:
            draws = [view.generator(p) for p in self._positions(index, view.client)]
        x, y = (
            self._patches(index, self.patch, draws or [None] * len(index))
            if self.patch
            else self.gather(index)
        )
        if view is None:
            return x, y
        x, y = augment(self.augment, x, y, draws)
        if self.weights is not None:
            y = masses(y, self.weights[view.client])
        return x, y

    def _patches(
        self, index: Tensor, patch: PatchSettings, draws: Sequence[np.random.Generator | None]
    ) -> tuple[Tensor, Tensor]:
        """Return ``gather`` with one patch per sample, at its drawn position."""
        windows = [window(self.y.shape[1:], patch.size, draw) for draw in draws]
        x = _selected(self.x, lambda x: crop_patches(x, index, windows))
        return self._as_input(x), as_learned(crop_patches(self.y, index, windows))

    def _positions(self, index: Tensor, client: int) -> list[int]:
        """Return the positions of rows among a client's training rows."""
        rows, order = self._sorted[client]
        positions: list[int] = order[torch.searchsorted(rows, index)].tolist()
        return positions

    @cached_property
    def _sorted(self) -> list[tuple[Tensor, Tensor]]:
        in_order = [rows.sort() for rows in self.rows["train"]]
        return [(rows.values, rows.indices) for rows in in_order]

    def sizes(self, split: str) -> list[int]:
        """Return the number of samples per client."""
        return [len(r) for r in self.rows[split]]


def groups_of(dataset: Dataset) -> NDArray[np.int64] | None:
    """Return the number of each sample's group within its owner (N,); None without groups."""
    if dataset.groups is None:
        return None
    return dataset.groups.within(dataset.owners.client if dataset.owners else None)


def largest_groups(groups: NDArray[np.int64] | None, partition: Partition) -> list[int]:
    """Return the most training samples that one group has, for each client; 1 without groups."""
    if groups is None:
        return [1] * len(partition.clients)
    counts = (np.unique(groups[c.train], return_counts=True)[1] for c in partition.clients)
    return [int(count.max(initial=1)) for count in counts]


def clustered(groups: NDArray[np.int64] | None, partition: Partition) -> frozenset[tuple[str, int]]:
    """Return the (split, client) pairs in which several samples are of one group."""
    if groups is None:
        return frozenset()
    rows = {
        (split, i): getattr(client, split)
        for split in SPLITS
        for i, client in enumerate(partition.clients)
    }
    return frozenset(
        key for key, split_rows in rows.items() if len({*groups[split_rows]}) < len(split_rows)
    )


def _selected(x: Tensor, select: Callable[[Tensor], Tensor]) -> Tensor:
    """Take a part of x; uint16, which few kernels support, is converted to float32."""
    if x.dtype == torch.uint16:
        return select(x.view(torch.int16)).view(torch.uint16).float()
    return select(x)


def cached(
    network: "SplitNetwork", data: DeviceDataset, precision: Precision, workers: int = 1
) -> DeviceDataset:
    """Return the data set whose samples are features, float32, memory-mapped.

    A client's samples pass through the network in its own batches and order, so that results are
    bit-identical for any number of workers and any other clients.

    Args:
        network: cut for the data.
        data: the samples.
        precision: ``bf16`` runs the network under autocast.
        workers: number of processes; forked, so that the network is not copied.

    Raises:
        StorageError: no space on the disk.
        WorkerError: a process died.
    """
    channels, *sides = network.shape
    shape = (*sides, channels) if sides else network.shape  # channels last, as for all data
    array = mapped(
        (len(data.x), *shape), np.float32, "features", "set model.cache_features = 'off'"
    )
    features = torch.from_numpy(array)
    todo = list(batches(data))

    @torch.no_grad()
    def fill(indices: Sequence[Tensor]) -> None:
        torch.set_num_threads(1)
        lower = (
            torch.autocast(data.x.device.type, torch.bfloat16)
            if precision == "bf16"
            else nullcontext()
        )
        for index in indices:
            with lower:
                outputs = network.features(data.gather(index)[0])
            features[index.cpu()] = (
                (outputs.movedim(1, -1) if len(shape) > 2 else outputs).float().cpu()
            )

    if workers == 1 or data.x.device.type != "cpu":
        fill(todo)
    else:
        _forked(fill, [todo[k::workers] for k in range(workers)])
    return replace(data, x=features.to(data.x.device), shift=None, scale=None)


def _forked(fill: Callable[[Sequence[Tensor]], None], shares: Sequence[Sequence[Tensor]]) -> None:
    context = torch.multiprocessing.get_context("fork")
    processes = [
        context.Process(target=fill, args=(share,), daemon=True) for share in shares if share
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise WorkerError("a process that computed features was lost; run again with fewer workers")


def statistics_batches(rows: Tensor, max_size: int) -> list[Tensor]:
    """Split samples (n,) into the fewest batches of at most ``max_size``, nearly equal, for
    BatchNorm's cumulative average, in which a batch counts like any other. A single sample has no
    variance and is left out.
    """
    chunks = rows.tensor_split(max(1, -(-len(rows) // max_size)))
    return [chunk for chunk in chunks if len(chunk) > 1]


def batches(data: DeviceDataset) -> Iterator[Tensor]:
    """Yield each client's samples in batches; shared samples belong to the first client that has
    them.
    """
    visited = torch.zeros(len(data.x), dtype=torch.bool, device=data.y.device)
    for splits in zip(*(data.rows[split] for split in SPLITS), strict=True):
        rows = torch.cat(splits)
        new = rows[~visited[rows]]
        visited[new] = True
        yield from new.split(EVALUATION_BATCH) if len(new) else ()
