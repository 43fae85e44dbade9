"""Names of before; nothing here stays."""

from pomona.data.axes import *  # noqa: F403
from pomona.data.axes import (
    Arrays,
    CustomReader,
    ImageList,
    PictureRows,
    Pictures,
    Table,
    Texts,
)

ClientCsvTables = ClientParquetTables = HubTable = CsvTable = ParquetTable = MemoryFrame = Table
ClientCsvTexts = ClientParquetTexts = HubTexts = CsvTexts = ParquetTexts = Texts
ClientArrays = NpzArrays = MemoryArrays = Arrays
HubImages, ImageFolder, IdxImages = PictureRows, Pictures, Pictures
ImageManifest = ImageList
OwnReader = CustomReader
