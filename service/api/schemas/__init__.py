"""The words of the API, one file per resource: what may be sent (Create) and what comes back (Public).

What the client knows too is written once, in `service/client_models.py` and `service/client_schedules.py`.
"""
