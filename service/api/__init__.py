"""The REST interface: app.py wires, one router per resource under routes/, its words under schemas/.

Not here: who may call (service/auth), what is kept (service/store), who runs sessions (service/work).
"""
