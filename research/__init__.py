"""Developers' programs, not in the wheel: fitting the cost model, validation against published runs,
preference learning, synthetic nights, recorded sessions.
"""
