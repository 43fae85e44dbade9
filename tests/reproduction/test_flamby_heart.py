"""FLamby's split of Fed-Heart-Disease: its numbers of rows, and columns that follow from them."""

import runpy

from paper_suites import FOLDER

SIZES = {  # Ogier du Terrail et al., table of Fed-Heart-Disease: training and test rows of a centre
    0: (199, 104),
    1: (172, 89),
    2: (30, 16),
    3: (85, 45),
}


def test_centres_have_the_rows_of_the_published_split(real_data):
    sets = runpy.run_path(str(FOLDER / "flamby_heart.py"))["heart"](real_data / "heart_disease")
    assert sets.keys() == {f"{split}_{n}" for n in SIZES for split in ("train", "test")}
    for number, (train, test) in SIZES.items():
        assert (len(sets[f"train_{number}"]), len(sets[f"test_{number}"])) == (train, test)
    rows = [row for table in sets.values() for row in table]
    assert {len(row) for row in rows} == {14}  # 13 features and the outcome
    assert {row["disease"] for row in rows} == {0, 1}
    assert all(row["cp_2"] + row["cp_3"] + row["cp_4"] in (0, 1) for row in rows)


def test_a_part_is_a_file_with_a_header(tmp_path):
    write = runpy.run_path(str(FOLDER / "flamby_heart.py"))["write"]
    write({"train_0": [{"age": 1.0, "disease": 0}]}, tmp_path / "heart")
    assert (tmp_path / "heart" / "train_0.csv").read_text() == "age,disease\n1.0,0\n"
