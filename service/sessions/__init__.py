"""Sessions: rows, their state machine, use cases, the REST resource, the run in a worker, the pages."""
