"""Layers of the native engine besides plain convolutions and linear ones, against float64."""

import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import pomona
from native_checks import KINDS, close, gradient, native, objective_of, refusal, samples, step_of
from pomona.core.round import Round
from pomona.core.training_settings import Optimizer
from pomona.models import ModelSettings, build
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.objective import Pull
from pomona.objective.pytorch import TorchObjective
from pomona_native import layers
from problems import tiny
from representatives import representatives

pytestmark = pytest.mark.long

CURVE = 5e-3  # of a loss, over some rounds: engines differ in rounding alone


class Residual(nn.Module):
    """Two convolutions with a shortcut around them, which is a convolution if sizes differ."""

    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs),
        )  # fmt: skip
        equal_shape = (inputs, 1) == (outputs, stride)
        self.shortcut = nn.Sequential() if equal_shape else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return nn.functional.relu(self.residual(x) + self.shortcut(x))


def groups(channels):
    return nn.GroupNorm(2 if channels % 2 == 0 else 1, channels)


def residual(channels, norm=groups, width=6):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.ReLU(),
        Residual(width, width, 1, norm), Residual(width, width + 3, 2, norm),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width + 3, 3),
    )  # fmt: skip


def vectors(*between):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 20), *between, nn.Linear(20, 20), *deepcopy(between),
        nn.Linear(20, 3),
    )  # fmt: skip


def images(*between, outputs):
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), *between, nn.Conv2d(5, 4, 2), nn.Flatten(), nn.Linear(outputs, 3)
    )  # fmt: skip


NETWORKS = {
    "gelu": (lambda: vectors(nn.GELU()), (6, 6, 1)),
    "tanh": (lambda: vectors(nn.Tanh()), (6, 6, 1)),
    "silu": (lambda: vectors(nn.SiLU()), (36,)),
    "sigmoid": (lambda: vectors(nn.Sigmoid()), (36,)),
    "relu6": (lambda: vectors(nn.ReLU6()), (36,)),
    "dropout": (lambda: vectors(nn.ReLU(), nn.Dropout(0.4)), (36,)),
    "a norm of vectors": (lambda: vectors(nn.LayerNorm(20), nn.ReLU()), (36,)),
    "activations of images": (lambda: images(nn.GELU(), outputs=4 * 4 * 6), (5, 7, 2)),
    "dropout of images": (
        lambda: images(nn.Dropout(0.3), nn.ReLU(), nn.Dropout2d(0.3), outputs=4 * 4 * 6), (5, 7, 2)
    ),
    "means": (lambda: images(nn.AvgPool2d(3, 2, 1), outputs=4 * 2 * 3), (5, 7, 2)),
    "means without padding": (
        lambda: images(nn.AvgPool2d(3, 2, 1, count_include_pad=False), outputs=4 * 2 * 3), (5, 7, 2)
    ),
    "groups": (lambda: images(nn.GroupNorm(1, 5), nn.ReLU(), outputs=4 * 4 * 6), (5, 7, 2)),
    "residual": (lambda: residual(2), (9, 12, 2)),
    "vgg11": (lambda: build(ModelSettings(name="vgg11"), (3, 9, 13), 3, seed=1), (9, 13, 3)),
}  # fmt: skip


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("batch", [1, 10, 33])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_float64(name, batch, variant):
    create, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = create()
    close(module, samples(40, shape, seed=batch), torch.arange(batch), variant)


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("batch", [2, 11])
@pytest.mark.parametrize(
    ("create", "shape"),
    [
        (lambda: vectors(nn.BatchNorm1d(20), nn.ReLU()), (36,)),
        (lambda: residual(3, nn.BatchNorm2d), (12, 15, 3)),
    ],
)
def test_gradients_through_a_batchs_statistics_are_those_of_float64(create, shape, batch, variant):
    """Of few numbers a mean over a batch amplifies rounding: PyTorch's float32 is as far off."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = create()
    close(
        module, samples(40, shape), torch.arange(batch), variant, bound=5e-5 if batch == 2 else 1e-5
    )


def test_resnet18_is_exact_to_float32():
    module = build(ModelSettings(name="resnet18"), (3, 64, 48), 3, seed=1)
    network = close(module, samples(8, (64, 48, 3)), torch.arange(6), bound=2e-5)
    assert network.has_statistics


@pytest.mark.parametrize(("side", "bf16", "reason"), [(65, False, "pixels"), (32, True, "in bf16")])
def test_large_convolutions_are_left_to_pytorch_where_it_is_as_fast(side, bf16, reason):
    module, data = build(ModelSettings(name="vgg11"), (1, 64, side), 3), samples(2, (64, side, 1))
    assert reason in refusal(module, data, bf16)
    assert step_of(module, samples(2, (64, 64, 1))).large


@given(
    st.integers(1, 3), st.integers(1, 20), st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(0, 1), st.integers(1, 9),
    st.sampled_from(["most", "mean", "ceil", "all"]), st.sampled_from([0, 1, 2**18]),
    st.integers(1, 5), st.sampled_from(KINDS),
)  # fmt: skip
@settings(max_examples=120)
def test_geometry_is_pytorchs(
    channels, width, window, hop, padding, side, pool, large, batch, variant
):
    """Strided convolutions, by each of the ways to compute them, and pooling that overlaps, leaves
    gaps, or reaches over the edge, on images down to one pixel.
    """
    reach = padding if min(window) > 1 else 0
    pools = {
        "most": nn.MaxPool2d(window, hop, reach),
        "mean": nn.AvgPool2d(window, hop, reach),
        "ceil": nn.MaxPool2d(window, hop, reach, ceil_mode=True),
        "all": nn.AdaptiveAvgPool2d(1),
    }
    body = nn.Sequential(
        nn.Conv2d(channels, width, 1), nn.Tanh(), pools[pool],
        nn.Conv2d(width, 3, min(2, side), hop, padding), nn.Tanh(), nn.Flatten(),
    )  # fmt: skip
    try:
        features = body(torch.zeros(1, channels, side, side + 2)).shape[1]
    except RuntimeError:
        return  # larger than the image
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(channels + 10 * width)
        patch.setattr(layers, "LARGE", large)
        module = nn.Sequential(*body, nn.Linear(features, 3))
        close(module, samples(6, (side, side + 2, channels)), torch.arange(batch), variant)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_norms_are_those_of_float64_for_any_size(channels, height, width, batch, affine):
    if height * width == 1:
        return  # of a channel's one number nothing is left
    groups = max(g for g in (1, 2, 3) if channels % g == 0)
    with torch.random.fork_rng():
        torch.manual_seed(channels)
        module = nn.Sequential(
            nn.Conv2d(2, channels, 1), nn.GroupNorm(groups, channels, affine=affine), nn.GELU(),
            nn.Flatten(), nn.Linear(channels * height * width, 3),
        )  # fmt: skip
    # a group of two numbers is normalised to +-1, with gradients of eps's size only
    bound = 5e-6 if channels // groups * height * width > 8 else 1e-3
    close(module, samples(4, (height, width, 2)), torch.arange(batch), bound=bound)


def test_convolutions_by_patches_are_the_same_in_parts():
    """Of a batch whose patches do not fit: gradients are sums over several parts of it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(2, 24, 1), nn.Tanh(), nn.Conv2d(24, 1300, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1300, 3),
        )  # fmt: skip
    close(module, samples(12, (10, 11, 2)), torch.arange(11))


def test_a_gradient_is_the_slope_of_the_loss():
    """Central differences of the engine's own loss, along its gradient."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = residual(2)
    data, space = samples(16, (9, 12, 2)), ParameterSpace(module)
    network, row = step_of(module, data), space.pack(module)
    g, index = torch.empty_like(row), torch.arange(16)
    gradient(network, row, g, index)
    ahead, behind = (
        gradient(network, row + sign * 3e-3 * g / g.norm(), torch.empty_like(g), index)
        for sign in (1, -1)
    )
    assert (ahead - behind) / 6e-3 == pytest.approx(g.norm().item(), rel=3e-3)


def texts(n=12, length=9, vocabulary=50, dtype=torch.int32):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, vocabulary, (n, length), generator=draw, dtype=dtype)
    x[:, -2:] = 0  # padding
    rows = {"train": [torch.arange(n)], "test": [torch.arange(n)]}
    return DeviceDataset(x, torch.arange(n) % 4, None, None, rows, "classes")


def fasttext():
    return build(ModelSettings(name="fasttext", width=7), (9,), 4, 50, seed=1)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(50, 5, mode="mean"), nn.Linear(5, 4)

    def forward(self, text):
        return self.out(self.bag(text))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("create", [fasttext, Bag])
def test_gradients_of_word_vectors_are_those_of_float64(create, dtype):
    for index in (torch.arange(12), torch.tensor([3]), torch.tensor([4, 4, 1])):
        close(create(), texts(dtype=dtype), index)


@pytest.mark.parametrize(
    "changed",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.01}, {"pull": True}, {"part": True}],
    ids=lambda changed: ", ".join(changed) or "plain",
)
def test_steps_of_word_vectors_are_pytorchs(changed):
    """Plain SGD leaves the vectors of words that a batch does not have; all else moves them."""
    module, data = fasttext(), texts()
    space = ParameterSpace(module)
    initial = space.pack(module)
    settings = {k: v for k, v in changed.items() if k in ("momentum", "weight_decay")}
    round_ = replace(Round(1, 1, 0.05, 0.05, 1.0, 1, 6, 0.0, 0.0, 0, Optimizer()), **settings)
    pull = Pull(0.3, torch.ones(1, space.size)) if "pull" in changed else None
    block = slice(20, space.size - 3) if "part" in changed else None
    rows = []
    by_torch = TorchObjective(module, space, data, cross_entropy)
    for objective in (by_torch, objective_of(module, data)):
        W = initial.unsqueeze(0).clone()
        length = space.size if block is None else block.stop - block.start
        moments = torch.zeros(1, length if round_.momentum else 0)
        for index in torch.arange(12).split(5):
            objective.step(W, [index], moments, round_, None, pull, block)
        rows.append(W)
    assert_close(rows[1], rows[0], atol=2e-6, rtol=2e-6)
    untouched = space.padding[0]
    unchanged = torch.equal(rows[1][0, untouched], initial[untouched])
    assert unchanged is not ("pull" in changed)


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_statistics_are_pytorchs(buffers):
    """Those that training leaves in a row, those estimated of a client's data, and evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = residual(3, nn.BatchNorm2d)
    data, space = samples(11, (8, 9, 3)), ParameterSpace(module, buffers)
    by_torch = TorchObjective(module, space, data, cross_entropy)
    by_native = objective_of(module, data, buffers=buffers)
    initial = space.pack(module)
    rows = [initial.clone() for _ in range(2)]
    for objective, row in zip((by_torch, by_native), rows, strict=True):
        for index in (torch.arange(5), torch.arange(5, 11)):
            objective.gradient(row.unsqueeze(0), [index])
        objective.data.rows["train"][0] = torch.arange(9)
    assert_close(rows[1], rows[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(rows[0], initial) is (buffers == "local")
    for row in (rows[0], rows[0][: space.trained].clone()):  # the second has none in any case
        assert_close(
            by_native.outputs(row, 0, "test")[0], by_torch.outputs(row, 0, "test")[0],
            atol=3e-5, rtol=3e-5,
        )  # fmt: skip


def test_features_are_kept_where_one_value_leads_on():
    """A cut inside a block has two; below dropout or a batch's statistics nothing is constant."""

    def cuts(module, shape=(9, 12, 2)):
        network = step_of(module, samples(4, shape))
        return {network.prefix_length(layer.start) for layer in ParameterSpace(module).layers}

    # convolution, pooling and ReLU; 5 layers of the first block, 6 of the second; mean; linear
    assert cuts(residual(2)) == {0, 3, 8, 15}
    assert cuts(vectors(nn.Dropout(0.5)), (36,)) == {0}
    assert cuts(residual(2, nn.BatchNorm2d)) == {0, 3}


def counted(module):
    """Counts the calls, as a schedule in a forward pass does."""
    module.calls = getattr(module, "calls", 0) + 1
    return module.calls < 1000


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x: self.out(x if x.sum() > 0 else -x), "cannot be traced"),
        (lambda self, x: self.out(x * 2), "mul"),
        (lambda self, x: self.out(x) + 1, "add"),
        (lambda self, x: self.out(self.out(x)), "pomona-native: weight must begin"),
        (lambda self, x: (self.out(x), x)[1], "last layer"),
        (lambda self, x: nn.functional.dropout(self.out(x)), "dropout"),
        (lambda self, x: self.out(x + nn.functional.relu(x, inplace=True)), "relu"),
        (lambda self, x: self.out(x + x if self.training else x), "not the same in each call"),
        (lambda self, x: self.out(x) if counted(self) else x, "not the same in each call"),
    ],
)
def test_other_forward_passes_are_left_to_pytorch(forward, reason):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 3)

    Network.forward = forward
    assert reason in refusal(Network(), samples(4, (3,)))


def network(*layers, shape=(4, 5, 2)):
    built = native.load(KINDS[0]).Network(*shape)
    for name, *arguments in layers:
        getattr(built, name)(*arguments)
    return built


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("pooling", (2, 2), (1, 1), (2, 0), False, False, False)], "half the window"),
        ([("pooling", (5, 2), (1, 1), (0, 0), False, False, False)], "larger than the image"),
        ([("pooling", (2, 2), (1, 1), (0, 0), True, False, True)], "not defined"),
        ([("normalisation", 3, 1e-5, 0.1, False, -1, -1, -1, -1)], "divide"),
        ([("normalisation", 0, 1e-5, 0.1, False, -1, -1, -1, 4)], "place in the row"),
        ([("normalisation", 1, 1e-5, 0.1, False, -1, 3, -1, -1)], "bias needs a weight"),
        ([("activation", "softmax")], "no activation"),
        ([("activation", "tanh", 1)], "no such layer"),
        ([("activation", "tanh"), ("sum", False, 0, 3)], "no such layer"),
        ([("linear", 3, False, 0, -1), ("sum", False, 0, 1)], "one shape"),
        ([("embedding", 9, 3, -1, 0)], "first layer, of texts"),
    ],
)
def test_the_door_refuses_layers(layers, message):
    with pytest.raises(ValueError, match=message):
        network(*layers)


def loss_of(network, size, x, **changes):
    arguments = {
        "rows": torch.zeros(1, size), "gradients": torch.zeros(1, size), "x": x, "index": torch.tensor([1, 0]),
        "counts": [2], "targets": torch.tensor([2, 0]), "shift": torch.zeros(1), "scale": torch.ones(1),
    }  # fmt: skip
    (loss,) = network.gradient(**(arguments | changes))
    return loss


def test_the_door_refuses_calls():
    x = torch.zeros(3, 4, 5, 2)
    dropping = network(("dropout",), ("linear", 3, False, 0, -1))
    assert loss_of(dropping, 120, x, masks=torch.ones(80)) > 0
    with pytest.raises(ValueError, match="masks"):
        loss_of(dropping, 120, x, masks=torch.ones(79))
    unread = network(("activation", "tanh"), ("linear", 3, False, 0, -1, 0))
    with pytest.raises(ValueError, match="read by none"):
        loss_of(unread, 120, x)
    normal = network(
        ("normalisation", 0, 1e-5, 0.1, False, -1, -1, 120, 122), ("linear", 3, False, 0, -1)
    )
    assert loss_of(normal, 124, x) > 0
    shared = torch.zeros(244)
    with pytest.raises(ValueError, match="rows"):  # statistics in the row are written
        loss_of(normal, 124, x, rows=shared[:124].view(1, -1), shift=shared[123:124])
    with pytest.raises(ValueError, match="statistics"):
        normal.outputs(
            *(torch.zeros(1, n) for n in (120, 3)), x, torch.tensor([0]), [1], *[torch.ones(1)] * 2
        )
    reading = network(("embedding", 9, 3, -1, 0), ("linear", 3, False, 27, -1), shape=(1, 1, 4))
    numbers = torch.full((3, 4), 8)
    assert loss_of(reading, 36, numbers) > 0
    for number in (9, -1, 2**40):
        with pytest.raises(ValueError, match="vocabulary"):
            loss_of(reading, 36, torch.full((3, 4), number))
    with pytest.raises(ValueError, match="texts"):
        loss_of(reading, 36, numbers.float())


def test_a_batch_of_one_number_has_no_statistics():
    network = step_of(vectors(nn.BatchNorm1d(20)), samples(4, (36,)))
    row = torch.ones(network.layer_ends[-1])
    with pytest.raises(ValueError, match="more than one"):
        gradient(network, row, torch.empty_like(row), torch.tensor([2]))


def dropped(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, n_outputs)
    )


def grouped(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(*residual(1)[:-1], nn.Linear(9, n_outputs))


def normed(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(*residual(1, nn.BatchNorm2d)[:-1], nn.Linear(9, n_outputs))


@pytest.fixture
def own_networks(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])


METHODS = [("fedavg", {}), ("apple", {"mu": 0.1, "dr_lr": 0.01}), ("ditto", {"lambda": 0.5})]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[0])
@pytest.mark.parametrize("name", ["dropped", "grouped", "normed"])
def test_engines_learn_the_same(own_networks, name, method):
    model = {"name": f"own_networks:{name}"}
    by_torch, by_native = (
        pomona.run(tiny(*method, engine=engine, model=model)) for engine in ("torch", "native")
    )
    for a, b in zip(by_torch.rounds, by_native.rounds, strict=True):
        assert b.loss == pytest.approx(a.loss, abs=CURVE)


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_engines_evaluate_the_same_with_statistics(own_networks, buffers):
    model = {"name": "own_networks:normed"}
    runs = [
        pomona.run(tiny("fedavg", engine=engine, model=model, buffers=buffers))
        for engine in ("torch", "native")
    ]
    for a, b in zip(*(run.rounds for run in runs), strict=True):
        assert b.loss == pytest.approx(a.loss, abs=CURVE)


@pytest.mark.parametrize("name", ["dropped", "normed"])
@pytest.mark.parametrize("method", representatives(["fedavg", "apple"], ["apple"]))
def test_results_do_not_depend_on_the_number_of_workers(own_networks, method, name):
    model = {"name": f"own_networks:{name}"}
    a, b = (pomona.run(tiny(method, engine="native", model=model, workers=w)) for w in (1, 2))
    assert a.evaluations == b.evaluations
    assert [r.loss for r in a.rounds] == [r.loss for r in b.rounds]
