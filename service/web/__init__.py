"""The web pages: rendered here from the same functions that the API calls, with a little script on top.

Covers pages, figures and forms. Not here: who may do what (service/auth), what happens to a session
(service/store, service/work), and any arithmetic about performance (tools).
"""
