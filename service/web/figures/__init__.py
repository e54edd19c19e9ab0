"""The figures as plain Plotly JSON, one file each: pure functions of a report or a trace's analysis.

Colours are names of the stylesheet's custom properties (`--compute`): the page resolves them, in light and in
dark. All text from elsewhere goes through `label`, since Plotly reads a little HTML in texts.
"""
