"""Mixing and the step on a mixture by the native engine, against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from native_checks import KINDS, native


def rows(n, N, d, seed=0):
    """Weights (n, N), own places (n,), copies (N, d), cores and gradients (n, d), moments (n,
    d).
    """
    draw = torch.Generator().manual_seed(seed)
    randn = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    positions = torch.randint(0, N, (n,), generator=draw)
    return randn(n, N), positions, randn(N, d), randn(n, d), randn(n, d), randn(n, d)


def common(package, copies):
    """The rows of copies (N, d) for all clients."""
    return package.Copies([copies], None)


def banks(positions, copies, cores):
    """What each client mixes (n, N, d), in float64."""
    mixed = copies.double().repeat(len(positions), 1, 1)
    mixed[torch.arange(len(positions)), positions] = cores.double()
    return mixed


@given(st.integers(1, 8), st.integers(1, 14), st.integers(1, 70), st.sampled_from(KINDS))
@settings(max_examples=150)
def test_mixtures_slopes_and_steps_are_those_of_float64(n, N, d, variant):
    package, (p, positions, copies, cores, g, v) = native.load(variant), rows(n, N, d, n + 20 * N)
    initial, bank = cores.clone(), banks(positions, copies, cores)
    mixture, slopes = torch.full((n, d), torch.nan), torch.full((n, N), torch.nan)
    package.mix(p, positions, common(package, copies), cores, mixture)
    assert torch.equal(cores, initial)
    terms = (p.double().unsqueeze(2) * bank).abs().sum(1)
    assert ((mixture - torch.einsum("ij,ijd->id", p.double(), bank)).abs() <= 1e-6 * terms).all()
    products = torch.full((n, N), torch.nan)
    package.products(positions, common(package, copies), cores, g, products)
    assert torch.equal(cores, initial)
    velocity = v.clone()
    package.move(p, positions, common(package, copies), cores, g, velocity, slopes, 0.1, 0.9, 0.01)
    assert torch.equal(products, slopes)
    sizes = torch.einsum("id,ijd->ij", g.double().abs(), bank.abs())
    assert ((slopes - torch.einsum("id,ijd->ij", g.double(), bank)).abs() <= 1e-6 * sizes).all()
    weight = p.gather(1, positions.unsqueeze(1)).double()
    expected = 0.9 * v.double() + weight * g.double() + 0.01 * initial.double()
    assert_close(velocity.double(), expected, atol=1e-5, rtol=1e-5)
    assert_close(cores.double(), initial.double() - 0.1 * expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", KINDS)
def test_a_client_gets_the_same_bits_beside_any_others(variant):
    n, N, d = 7, 11, 20_011  # several tiles, of another size for another number of clients
    package, (p, positions, copies, cores, g, _) = native.load(variant), rows(n, N, d)
    empty, flipped = torch.empty(n, 0), copies.flip(1)

    def computed(ids, bank):
        new = cores[ids].clone()
        mixture, slopes = torch.empty_like(new), torch.empty(len(new), N)
        package.mix(p[ids], positions[ids], bank, new, mixture)
        package.move(p[ids], positions[ids], bank, new, g[ids], empty[ids], slopes, 0.1, 0.0, 0.0)
        return mixture, new, slopes

    def differ(single, results, k):
        return not all(torch.equal(a[0], b[k]) for a, b in zip(single, results, strict=True))

    batched = computed(slice(0, n), common(package, copies))
    # rows by number, each in memory of its own, of which every client has others
    versions = [row.clone().unsqueeze(0) for row in (*copies, *flipped)]
    index = torch.randint(0, 2, (n, N), generator=torch.Generator().manual_seed(0))
    numbered = computed(slice(0, n), package.Copies(versions, index * N + torch.arange(N)))
    for k in range(n):
        single = computed(slice(k, k + 1), common(package, copies))
        assert not differ(single, batched, k)
        mine = torch.where(index[k].bool().unsqueeze(1), flipped, copies)
        single = computed(slice(k, k + 1), common(package, mine))
        assert not differ(single, numbered, k)


def test_whole_numbers_are_mixed_without_error():
    """Also where all copies are one row in memory, as they are before anybody has trained."""
    draw = torch.Generator().manual_seed(1)
    integers = lambda *shape: torch.randint(-3, 4, shape, generator=draw).float()  # noqa: E731
    p = integers(4, 5)
    positions = torch.tensor([4, 0, 2, 2])
    copies = integers(5, 3001)
    cores = integers(4, 3001)
    g = integers(4, 3001)
    mixture, slopes = torch.empty(4, 3001), torch.empty(4, 5)
    package = native.load(KINDS[0])
    for rows in (copies, copies[1].expand(5, -1)):
        mixed = banks(positions, rows, cores)
        package.mix(p, positions, common(package, rows), cores, mixture)
        package.move(
            p, positions, common(package, rows), cores, g, torch.empty(4, 0), slopes, 0.0, 0.0, 0.0
        )
        assert torch.equal(mixture.double(), torch.einsum("ij,ijd->id", p.double(), mixed))
        assert torch.equal(slopes.double(), torch.einsum("id,ijd->ij", g.double(), mixed))


def run_entry(name, arguments):
    package = native.load(KINDS[0])
    getattr(package, name)(**(arguments | {"copies": common(package, arguments["copies"])}))


SPOILT = [
    {"weights": torch.zeros(2, 4)},
    {"weights": torch.zeros(3, 3)},
    {"weights": torch.zeros(2, 3, dtype=torch.float64)},
    {"own": torch.tensor([0])},
    {"own": torch.tensor([0, 3])},
    {"own": torch.tensor([-1, 0])},
    {"copies": torch.zeros(3, 6)},
    {"copies": torch.zeros(3, 10)[:, ::2]},
    {"cores": torch.zeros(3, 5)},
    {"cores": None},
]


@pytest.mark.parametrize(
    "spoilt", [*SPOILT, {"made": torch.zeros(2, 6)}, {"made": torch.zeros(1, 5)}]
)
def test_the_door_to_mixing_refuses(spoilt):
    good = {"weights": torch.zeros(2, 3), "own": torch.tensor([0, 2]), "copies": torch.zeros(3, 5)}
    good |= {"cores": torch.zeros(2, 5), "made": torch.zeros(2, 5)}
    run_entry("mix", good)
    with pytest.raises((ValueError, TypeError)):
        run_entry("mix", good | spoilt)


@pytest.mark.parametrize(
    "spoilt",
    [
        *SPOILT,
        {"gradients": torch.zeros(2, 4)},
        {"gradients": torch.zeros(1, 5)},
        {"moments": torch.zeros(2, 4)},
        {"moments": torch.zeros(2, 0)},
        {"slopes": torch.zeros(2, 2)},
        {"slopes": torch.zeros(3, 3)},
    ],
)
def test_the_door_to_moving_refuses(spoilt):
    good = {"weights": torch.zeros(2, 3), "own": torch.tensor([0, 2]), "copies": torch.zeros(3, 5)}
    good |= {
        "cores": torch.zeros(2, 5),
        "gradients": torch.zeros(2, 5),
        "moments": torch.zeros(2, 5),
    }
    good |= {"slopes": torch.zeros(2, 3), "lr": 0.1, "momentum": 0.5, "decay": 0.0}
    run_entry("move", good)
    with pytest.raises((ValueError, TypeError)):
        run_entry("move", good | spoilt)


@pytest.mark.parametrize(
    ("tables", "index"),
    [
        ([], None),
        ([torch.zeros(0, 5)], None),
        ([torch.zeros(3, 10)[:, ::2]], None),
        ([torch.zeros(3, 5), torch.zeros(1, 4)], None),
        ([torch.zeros(3, 5).double()], None),
        ([torch.zeros(3, 5)], torch.tensor([[0, 3]])),
        ([torch.zeros(3, 5)], torch.tensor([[0, -1]])),
        ([torch.zeros(3, 5)], torch.tensor([0, 1])),
    ],
)
def test_the_door_to_copies_refuses(tables, index):
    package = native.load(KINDS[0])
    package.Copies([torch.zeros(3, 5), torch.zeros(1, 5)], torch.tensor([[0, 3]]))
    with pytest.raises((ValueError, TypeError)):
        package.Copies(tables, index)


def test_each_client_of_a_call_needs_copies():
    package, cores = native.load(KINDS[0]), torch.zeros(2, 5)
    copies = package.Copies([torch.zeros(3, 5)], torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="each client"):
        package.mix(torch.zeros(2, 2), torch.tensor([0, 1]), copies, cores, torch.zeros(2, 5))


ROOM = torch.zeros(6, 5)  # for rows that share memory


def test_the_door_refuses_to_write_over_what_it_reads():
    good = {
        "weights": torch.zeros(2, 3),
        "own": torch.tensor([0, 2]),
        "copies": ROOM[:3],
        "cores": ROOM[3:5],
    }
    run_entry("mix", good | {"made": torch.zeros(2, 5)})
    for mixture in (ROOM[3:5], ROOM[4:6], ROOM[:2], ROOM[2:4]):
        with pytest.raises(ValueError, match=r"made.* shares memory"):
            run_entry("mix", good | {"made": mixture})
    rates = {"lr": 0.1, "momentum": 0.5, "decay": 0.0}
    good |= {
        "gradients": torch.zeros(2, 5),
        "moments": torch.zeros(2, 5),
        "slopes": torch.zeros(2, 3),
    } | rates
    run_entry("move", good)
    run_entry("move", good | {"copies": ROOM[0].expand(3, -1), "gradients": ROOM[:2]})
    run_entry("move", good | {"momentum": 0.0, "moments": good["cores"]})  # unused without momentum
    shared = [
        {"copies": ROOM[2:5]}, {"copies": ROOM[:6:2]}, {"gradients": good["cores"]}, {"moments": good["cores"]},
        {"moments": good["gradients"]}, {"slopes": good["weights"]},
        {"slopes": ROOM.view(-1)[15:21].view(2, 3)},
    ]  # fmt: skip
    for change in shared:
        with pytest.raises(ValueError, match="shares memory"):
            run_entry("move", good | change)
    arguments = {name: good[name] for name in ("own", "copies", "cores", "gradients")}
    run_entry("products", arguments | {"slopes": good["slopes"]})
    for slopes in (ROOM.view(-1)[13:19].view(2, 3), ROOM.view(-1)[15:21].view(2, 3)):
        with pytest.raises(ValueError, match="shares memory"):
            run_entry("products", arguments | {"slopes": slopes})
    for spoilt in (
        {"slopes": torch.zeros(2, 2)},
        {"slopes": good["slopes"], "gradients": torch.zeros(2, 4)},
    ):
        with pytest.raises(ValueError, match="each client"):
            run_entry("products", arguments | spoilt)
