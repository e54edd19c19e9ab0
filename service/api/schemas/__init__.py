"""The words of the API, one file per resource: what may be sent (Create) and what comes back (Public)."""
