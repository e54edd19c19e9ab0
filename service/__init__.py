"""Command line, and later the HTTP service: everything that meets a user."""

__version__ = "0.1.0"
