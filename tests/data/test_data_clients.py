import numpy as np
import pytest

from pomona.core.errors import ConfigError, DataError
from pomona.data import ClientFiles, data_settings, read


def write_npz(path, first, n):
    np.savez(path, x=np.arange(first, first + n, dtype=float)[:, None], y=np.arange(n) % 2)
    return path


def write_csv(path, first, n):
    path.write_text("v,y\n" + "".join(f"{first + i},{i % 2}\n" for i in range(n)))
    return path


@pytest.mark.parametrize(
    ("write", "suffix", "keys"), [(write_npz, "npz", {}), (write_csv, "csv", {"label_column": "y"})]
)
def test_roles_and_owners(tmp_path, write, suffix, keys):
    files = (
        ClientFiles(
            name="north",
            train=write(tmp_path / f"a.{suffix}", 0, 3),
            test=write(tmp_path / f"b.{suffix}", 90, 2),
        ),
        ClientFiles(
            name="NA",
            train=write(tmp_path / f"c.{suffix}", 10, 2),
            validation=write(tmp_path / f"d.{suffix}", 50, 1),
        ),
    )
    data = read(data_settings(clients=files, **keys))
    assert data.x[:, 0].tolist() == [0, 1, 2, 10, 11, 50, 90, 91]  # train, validation, test
    assert data.owners is not None
    assert data.owners.names == ("north", "NA")  # Namibia is no gap
    assert data.owners.client.tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert data.owners.role.tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    assert (data.n_train, data.name, data.classes) == (6, "clients", ("0", "1"))
    # not the validation's
    np.testing.assert_allclose(data.learn(data, np.arange(5)).shift, np.mean([0, 1, 2, 10, 11]))


def test_texts_of_clients(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"0,word {name}\n1,word\n")
    files = tuple(ClientFiles(name=name, train=tmp_path / f"{name}.csv") for name in "ab")
    data = read(data_settings(clients=files, label_column=0, text_columns=(1,), sequence_length=2))
    assert data.learn(data, np.arange(4)).x.tolist() == [[2, 3], [2, 0], [2, 4], [2, 0]]


def test_what_cannot_be(tmp_path):
    npz, csv = write_npz(tmp_path / "a.npz", 0, 2), write_csv(tmp_path / "b.csv", 0, 2)
    (images := tmp_path / "images").mkdir()
    arrays, table = ClientFiles(name="one", train=npz), ClientFiles(name="other", train=csv)
    for settings, message in (
        (data_settings(clients=(arrays, table)), "all as .npz or as tables"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(settings)
    with pytest.raises(ConfigError, match=r"data.clients: no setting of digits"):
        data_settings(name="digits", clients=(arrays,))
    for files, message in (
        ((arrays, ClientFiles(name="two", train=tmp_path / "no.npz")), "cannot read .*no.npz"),
        (
            (arrays, ClientFiles(name="two", train=images)),
            "is a folder; images of a client are one .npz",
        ),
        (
            (
                ClientFiles(name="a", train=tmp_path / "no.npz"),
                ClientFiles(name="b", train=tmp_path / "nor.npz"),
            ),
            "data.clients has 2 problems: .*no.npz.*nor.npz",
        ),
        ((arrays, arrays), "clients without a name of their own: 'one'"),
        (
            (arrays, ClientFiles(name="two", train=npz)),
            "a.npz contains the train rows of one and the train rows of two",
        ),
        (
            (ClientFiles(name="a", train=npz, test=npz),),
            "a.npz contains the train rows of a and the test rows of a",
        ),
    ):
        with pytest.raises(DataError, match=message):
            read(data_settings(clients=files))
