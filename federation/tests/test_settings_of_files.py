"""The reference of a federation's files: complete, explained, searchable."""

import pytest

from pomona.cli.settings import find
from pomona_federation.agreement import Federation
from pomona_federation.cli.file_settings import FILES, in_files
from pomona_federation.silo.settings import SiloFile
from pomona_federation.study import STUDY_TYPES, StudyTerms

pytestmark = pytest.mark.long


def test_every_key_of_a_federations_files_is_in_the_reference_with_its_meaning():
    for title, record in FILES.items():
        listed = [s for s in in_files() if s.owner == title]
        elsewhere = {"data"} if record is SiloFile else {"study"} if record is Federation else set()
        elsewhere |= set(StudyTerms.model_fields) if record in STUDY_TYPES.values() else set()
        assert {s.key for s in listed} == {
            f.alias or name for name, f in record.model_fields.items()
        } - elsewhere
        assert [s.key for s in listed if not s.meaning or s.kind == "any"] == []
    assert {s.owner for s in find("quorum", in_files())} == {"federation.toml", "STUDY.toml"}
