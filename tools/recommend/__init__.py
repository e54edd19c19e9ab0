"""Recommendations: the best plans that really differ, each with reasons, and why not the others."""
