"""A training framework's configuration as a scenario: the reverse of `tools.export`.

Covers the settings that a plan and its contract consist of; others are listed as not used. What such files do
not hold (the cluster, mostly the model) is given beside them. Does not run or evaluate anything in a file.
"""

from tools.imports.assemble import Given, Imported
from tools.imports.formats import IMPORT_FORMATS, import_plan

__all__ = ["IMPORT_FORMATS", "Given", "Imported", "import_plan"]
