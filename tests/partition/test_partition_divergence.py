import numpy as np
from partition_data import divided, table

from pomona.partition import Iid
from pomona.partition.divergence import effective_classes, emd, label_counts


def test_counts_are_those_of_the_rows():
    data = table([20, 10], [6, 2])
    partition = divided(data, Iid(), 2)
    assert np.array_equal(label_counts(partition, data), [[10, 5], [10, 5]])
    assert np.array_equal(label_counts(partition, data, "test"), [[3, 1], [3, 1]])
    assert np.array_equal(label_counts(partition, data, "validation"), np.zeros((2, 2)))


def test_one_class_a_client_of_ten():
    """Own label |1 - 0.1| = 0.9, nine others 0.1 each: 1.8 in all."""
    counts = 50 * np.eye(10, dtype=np.int64)
    assert np.allclose(emd(counts), 1.8)
    assert np.allclose(effective_classes(counts), 1)


def test_equal_clients_do_not_differ():
    counts = np.array([[3, 1], [6, 2], [30, 10]])
    assert np.allclose(emd(counts), 0)


def test_emd_weighs_clients_by_their_rows():
    """p = (3/4, 1/4); client (30, 0): |1 - 3/4| + |0 - 1/4| = 1/2; client (0, 10): 3/2."""
    counts = np.array([[30, 0], [0, 10]])
    assert np.allclose(emd(counts), [0.5, 1.5])


def test_effective_classes():
    assert np.allclose(effective_classes(np.array([[5, 5, 5, 5], [8, 8, 0, 0]])), [4, 2])


def test_a_client_without_rows_has_no_distance():
    counts = np.array([[4, 4], [0, 0]])
    assert emd(counts)[0] == 0
    for measure in (emd, effective_classes):
        assert np.isnan(measure(counts)[1])
