"""The web pages: rendered here from the same functions that the API calls, with a little script on top.

Not here: who may do what (service/auth.py), what happens to a session (service/sessions.py, service/worker),
and any arithmetic about performance (tools).
"""
