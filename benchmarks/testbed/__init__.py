"""A small cluster on one machine: hosts as network namespaces on slow links, two ranks each.

Reading order: `hosts` (namespaces, links, shaping), `__main__` (the command that a launch template names),
`workloads` (what is trained, under which plans), `table` (every plan measured in rounds, and searchers on
it), `launching` (plans and sessions through ASAP), `layers` and `machine` (measurements of their own).
"""
