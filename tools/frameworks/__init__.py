"""Configurations of training frameworks: a plan written as one, and a scenario read from one.

One file per framework holds both directions. Export writes what a plan decides: parallel degrees, batch,
precision, recomputation; not data, optimizer or learning rate. Import never runs anything in a file.
"""

from tools.frameworks.assemble import Given, Imported
from tools.frameworks.formats import FORMATS, IMPORT_FORMATS, export_plan, import_plan
from tools.frameworks.writing import Export

__all__ = ["FORMATS", "IMPORT_FORMATS", "Export", "Given", "Imported", "export_plan", "import_plan"]
