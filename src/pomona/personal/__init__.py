"""Personal models as files: written at the end of a run, read back to answer.

``save`` writes one, ``PersonalModel.load`` reads it, ``PersonalModel.predict`` answers, ``inputs`` reads what it
answers for. The bytes of a file are in ``record.model_file``, what it says of its model in ``record.model_metadata``.
"""

from pomona.personal.model import PersonalModel, save, save_frozen

__all__ = ["PersonalModel", "save", "save_frozen"]
