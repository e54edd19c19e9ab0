"""One drawing kit for the command line, the pages and the nightly reports: text, Markdown, HTML, figures.

Nothing is judged or computed here.
"""
