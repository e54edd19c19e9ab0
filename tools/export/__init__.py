"""A plan as the configuration of a training framework.

Covers the parallel degrees, the batch, the precision and the recomputation of a plan, one file per format.
Does not write what a plan does not decide: data, optimizer, learning rate, checkpoints.
"""

from tools.export.formats import FORMATS, export_plan
from tools.export.record import Export

__all__ = ["FORMATS", "Export", "export_plan"]
