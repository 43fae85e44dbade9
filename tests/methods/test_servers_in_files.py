"""Server halves with uplinks in files: the same bits as in memory, with the rows of all clients in
files, too.
"""

import pytest
import torch

from pomona.core.state import flatten
from pomona.methods import METHODS, base
from pomona.storage import mapped_tensor
from pomona.storage.mapped_tensor import folder_of, mapped
from problems import a_round

N, WIDE = 4, 1004
ROSTER = base.Roster((30, 10, 20, 40))
ROUNDS = (0, 1, 2, 3), (0, 2), (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def narrow_slices(monkeypatch):
    monkeypatch.setattr(mapped_tensor, "SLICE", 100)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def noise(template, ids, number):
    """Client uplinks as the server half expects them."""
    if template.dtype == torch.bool:
        return torch.stack([random(*template.shape, seed=10 * number + i) > 0 for i in ids])
    if not template.is_floating_point():
        return torch.tensor(
            [[j for j in range(N) if j != i][: template.numel()] for i in ids]
        ).view(len(ids), *template.shape)
    return torch.stack([random(*template.shape, seed=10 * number + i) for i in ids]).to(
        template.dtype
    )


def in_file(tensor, folder):
    return mapped(tensor.shape, tensor.dtype, folder).copy_(tensor)


def states(settings, store):
    """The server's state after each round, and its downlink; ``store`` is the location of initial
    row and uplinks.
    """
    server = settings.method().server
    initial = base.Initial(
        lambda client: store(random(WIDE, seed=client or 0)),
        (slice(0, 500), slice(500, WIDE)),
        head=base.Head(slice(500, 1001), slice(1001, 1004), outputs=3, features=167),
    )
    state = server.start(initial, ROSTER, 0)
    for number, ids in enumerate(ROUNDS, 1):
        round_ = a_round(number=number, total=len(ROUNDS))
        downlink = server.downlink(state, ids, ROSTER, round_)
        uplink = {
            name: store(noise(template, ids, number))
            for name, template in server.uplink_form(state).items()
        }
        state = server.aggregate(state, uplink, ids, ROSTER, round_)
        yield (
            flatten(state, "server"),
            {name: rows.bank[rows.index] for name, rows in downlink.items()},
            downlink,
        )


@pytest.mark.parametrize("name", METHODS)
def test_a_server_computes_the_same_from_files(name, tmp_path):
    settings = METHODS[name]()
    memory, files = (
        states(settings, store) for store in (lambda t: t, lambda t: in_file(t, tmp_path))
    )
    for in_memory, in_files in zip(memory, files, strict=True):
        for expected, actual in zip(in_memory[:2], in_files[:2], strict=True):
            assert expected.keys() == actual.keys()
            assert all(torch.equal(expected[key], actual[key]) for key in expected)
        tensors = {**in_files[0], **{name: rows.bank for name, rows in in_files[2].items()}}
        rows = {k: t for k, t in tensors.items() if t.shape[:1] == (N,) and t.numel() >= N * WIDE}
        assert all(folder_of(t) for t in rows.values()), "rows of all clients"
