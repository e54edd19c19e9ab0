"""Configurations of training frameworks: a plan written as one, and a scenario read from one.

One file per framework holds both directions. Export writes what a plan decides: parallel degrees, batch,
precision, recomputation; not data, optimizer or learning rate. Import never runs anything in a file.
"""

from tools.frameworks.exporting import Export
from tools.frameworks.formats import EXPORT_FORMATS, IMPORT_FORMATS, export_plan, has_own_format, import_plan
from tools.frameworks.importing import ImportedScenario, ImportOptions
from tools.frameworks.patching import Patch, patch_plan

__all__ = [
    "EXPORT_FORMATS",
    "IMPORT_FORMATS",
    "Export",
    "ImportOptions",
    "ImportedScenario",
    "Patch",
    "export_plan",
    "has_own_format",
    "import_plan",
    "patch_plan",
]
