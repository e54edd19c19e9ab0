"""The report of a session as a document: Markdown and one self-contained HTML page.

Covers how a finished report is shown. Does not compute, judge or leave anything out of the JSON report.
"""
