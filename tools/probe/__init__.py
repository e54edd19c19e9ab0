"""What a minute on a cluster's own nodes says about it.

Reading order: `measured` (the shapes), `worker` (what runs on every rank), `report` (slow ranks and links,
figures beside the catalogue's, constants of the cost model), `layers` (a few layers of a plan's own model).
"""
