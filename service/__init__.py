"""Command line, HTTP service, pages, nightly runs: everything that meets a user."""

__version__ = "0.3.0"
