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


def noise(like, ids, number):
    """Client uplinks as the server half expects them."""
    if like.dtype == torch.bool:
        return torch.stack([random(*like.shape, seed=10 * number + i) > 0 for i in ids])
    if not like.is_floating_point():
        return torch.tensor([[j for j in range(N) if j != i][: like.numel()] for i in ids]).view(
            len(ids), *like.shape
        )
    return torch.stack([random(*like.shape, seed=10 * number + i) for i in ids]).to(like.dtype)


def in_file(tensor, folder):
    return mapped(tensor.shape, tensor.dtype, folder).copy_(tensor)


def states(settings, place):
    """The server's state after each round, and its downlink; ``place`` is the location of initial
    row and uplinks.
    """
    server = settings.method().server
    initial = base.Initial(
        lambda client: place(random(WIDE, seed=client or 0)),
        (slice(0, 500), slice(500, WIDE)),
        head=base.Head(slice(500, 1001), slice(1001, 1004), outputs=3, features=167),
    )
    state = server.start(initial, ROSTER, 0)
    for number, ids in enumerate(ROUNDS, 1):
        round_ = a_round(number=number, total=len(ROUNDS))
        down = server.downlink(state, ids, ROSTER, round_)
        uplink = {
            name: place(noise(like, ids, number))
            for name, like in server.uplink_form(state).items()
        }
        state = server.aggregate(state, uplink, ids, ROSTER, round_)
        yield (
            flatten(state, "server"),
            {name: rows.bank[rows.index] for name, rows in down.items()},
            down,
        )


@pytest.mark.parametrize("name", METHODS)
def test_a_server_computes_the_same_from_files(name, tmp_path):
    settings = METHODS[name]()
    memory, files = (
        states(settings, place) for place in (lambda t: t, lambda t: in_file(t, tmp_path))
    )
    for one, other in zip(memory, files, strict=True):
        for here, there in zip(one[:2], other[:2], strict=True):
            assert here.keys() == there.keys()
            assert all(torch.equal(here[key], there[key]) for key in here)
        held = {**other[0], **{name: rows.bank for name, rows in other[2].items()}}
        rows = {k: t for k, t in held.items() if t.shape[:1] == (N,) and t.numel() >= N * WIDE}
        assert all(folder_of(t) for t in rows.values()), "rows of all clients"
