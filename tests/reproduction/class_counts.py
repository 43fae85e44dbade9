"""Data sets defined only by the number of rows in each class, enough to compute every partition of
a suite.
"""

import numpy as np

from pomona.data.dataset import Dataset

MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
# Training rows are those of the source's training and validation parts, as the reader joins them.
ORGAN_A = (
    [2277, 1623, 1582, 1866, 4531, 4454, 7197, 4952, 4938, 3560, 4072],
    [1036, 784, 793, 785, 2064, 1965, 3285, 1747, 1813, 1622, 1884],
)
PATH = (
    [10407, 10566, 11512, 11557, 8896, 13536, 8763, 10446, 14317],
    [1338, 847, 339, 634, 1035, 592, 741, 421, 1233],
)
RETINA = [540, 140, 234, 214, 72], [174, 46, 92, 68, 20]
# of a letter of EMNIST, whose paper prints no counts: a quarter of the mean of its letters
LETTERS = (1_800, 300)

COUNTS = {
    "digits": ([178, 182, 177, 183, 181, 182, 181, 179, 174, 180], [0] * 10),
    "mnist": MNIST,
    "fashion-mnist": ([6000] * 10, [1000] * 10),
    "emnist-byclass": (
        [(697_932 - 52 * LETTERS[0]) // 10] * 10 + [LETTERS[0]] * 52,
        [10_072] * 10 + [LETTERS[1]] * 52,
    ),
    "cifar10": ([5000] * 10, [1000] * 10),
    "cifar100": ([500] * 100, [100] * 100),
    "organamnist": ORGAN_A,
    "pathmnist": PATH,
    "retinamnist": RETINA,
    "tiny-imagenet": ([500] * 200, [50] * 200),
    "ag-news": ([30_000] * 4, [1_900] * 4),
}
"""(training, test) rows of each class, by a data set's name in the catalogue; those of the whole
data set.
"""


def rows(name: str) -> Dataset:
    """A data set with these counts whose samples share one empty pixel in memory."""
    train, test = COUNTS[name]
    y = np.concatenate([np.repeat(np.arange(len(counts)), counts) for counts in (train, test)])
    x = np.broadcast_to(np.uint8(0), (len(y), 1, 1, 1))
    return Dataset(name, "image", x, y, tuple(f"class-{c}" for c in range(len(train))), sum(train))
