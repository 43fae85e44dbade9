"""Sites of several versions side by side: a new one leaves the others as they were."""

import pytest

from site_versions import put


def site(folder, text):
    folder.mkdir()
    (folder / "index.html").write_text(text)
    return folder


def test_each_version_stays_and_the_newest_release_is_first(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    assert put(site(tmp_path / "a", "early"), pages, "main") == ["main"]
    assert "url=main/" in (pages / "index.html").read_text()
    for name in ("v0.9.0", "v0.10.0"):
        put(site(tmp_path / name, name), pages, name)
    (pages / "main" / "gone.html").write_text("of a page that is no more")
    versions = put(site(tmp_path / "b", "late"), pages, "main")
    assert versions == ["v0.10.0", "v0.9.0", "main"]
    texts = {path.parent.name: path.read_text() for path in pages.glob("*/index.html")}
    assert texts == {"v0.9.0": "v0.9.0", "v0.10.0": "v0.10.0", "main": "late"}
    assert not (pages / "main" / "gone.html").exists()
    assert "url=v0.10.0/" in (pages / "index.html").read_text()


def test_a_name_that_is_no_version_is_refused(tmp_path):
    with pytest.raises(ValueError, match="neither main nor a release"):
        put(tmp_path, tmp_path, "../main")
