"""The REST interface: `app` wires it, each resource has one file with its routes and their schemas.

Not here: who may call (service/access), what is stored (service/db), who runs sessions (service/jobs).
"""
