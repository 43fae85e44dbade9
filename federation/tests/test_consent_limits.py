"""Limits of consent by kind of study and by view: [[limits]] of silo.toml."""

import pytest

from command_line import command
from pomona.core.errors import ConfigError
from pomona_federation.silo.settings import PRIVACY, SiloFile
from test_consent_policy import entry, ruled, submitted
from test_studies import proposals
from test_study_bounds import bounded

DATA = '[data]\nname = "digits"\n'
SILO = 'name = "east"\naccept_epsilon = 3.0\naccept_epsilon_total = 5.0\n'
SURVEYS = '[[limits]]\nkinds = ["survey", "evaluate"]\naccept_epsilon = 1.0\nwithout_noise = true\n'
PUBLIC = '[[limits]]\nviews = ["public"]\naccept_epsilon_total = 50.0\n'


def silo(path, *limits):
    (path / "silo.toml").write_text(SILO + "".join(limits) + DATA)
    return SiloFile.load(path / "silo.toml")


@pytest.mark.parametrize(
    ("study", "limits"),
    [
        (("train", "", True), (3.0, 5.0)),  # which no entry names: the file's own
        (("train", "", False), (3.0, 5.0)),
        (("survey", "", True), (1.0, 5.0)),  # what an entry does not set stays
        (("survey", "", False), (None, None)),
        (("evaluate", "public", False), (None, None)),  # the first that counts
        (("train", "public", True), (3.0, 50.0)),
        (("train", "public", False), (3.0, 50.0)),  # refused: noise is not waived there
    ],
)
def test_the_first_limits_that_count_for_a_study_are_its(study, limits, tmp_path):
    limited = silo(tmp_path, SURVEYS, PUBLIC).limited(*study)
    assert tuple(getattr(limited, key) for key in PRIVACY) == (*limits, None)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("[[limits]]\naccept_epsilon = 1.0\n", "kinds, views or both"),
        ('[[limits]]\nkinds = ["survey"]\n', "change nothing"),
        ('[[limits]]\nkinds = ["surveys"]\nwithout_noise = true\n', "kinds"),
        ('[[limits]]\nviews = ["a b"]\nwithout_noise = true\n', "views"),
        ('[[limits]]\nkinds = ["train"]\naccept_epsilon = 0.0\n', "accept_epsilon"),
    ],
)
def test_limits_that_say_nothing_or_nonsense_are_refused(limits, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        silo(tmp_path, limits)


@pytest.mark.long
def test_a_kind_that_may_be_without_noise_is_accepted_on_a_kit_with_limits(world, capsys):
    federation = world.federation("fedavg", wait=0.5)
    limit = {"kinds": ["train"], "views": [""], "without_noise": True}
    bounded(federation, accept_epsilon=1e6, accept_epsilon_total=1e6, limits=[limit])
    ruled(federation)
    submitted(federation, decide=0.0)
    proposals(federation, "silo-0")
    assert entry(federation).status == "accepted"
    kit = federation.kits / "silo-0"
    command("silo", "check", "--study", "second", "--folder", kit)  # no server answers here
    assert "[[limits]] of silo.toml for it: without noise too" in capsys.readouterr().out
