"""Words from elsewhere in tables of the terminal. Imports rich, so it is itself imported only to print."""

from rich.text import Text

from service.report.text import plain


def said(words: object, style: str = "") -> Text:
    """As they are: a name may look like rich's markup, or hold codes that a terminal obeys."""
    return Text(plain(words), style=style)
