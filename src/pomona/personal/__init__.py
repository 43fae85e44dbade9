"""Personal models as files: written at the end of a run, read back to answer.

``save`` writes one, ``PersonalModel.load`` reads it, ``PersonalModel.predict`` answers. ``about`` is what a file says
of its model, ``modelfile`` its bytes, ``inputs`` what it answers for.
"""

from pomona.personal.model import PersonalModel, save, save_frozen

__all__ = ["PersonalModel", "save", "save_frozen"]
