"""Predictions, searches and explanations outside of sessions, and the hardware catalogue."""
