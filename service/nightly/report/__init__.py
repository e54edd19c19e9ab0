"""A night's report as documents: HTML pages, Markdown, and short texts for mail and chat.

Covers how the plain data of `service.nightly.night` is shown. Nothing is judged or computed here.
"""
