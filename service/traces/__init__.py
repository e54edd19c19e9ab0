"""Profiler traces: uploads in parts, their analysis, expiry, pages."""
