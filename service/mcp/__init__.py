"""ASAP for assistants: its tools over the Model Context Protocol (`asap mcp`).

`tools.py` is what an assistant may call, `server.py` the protocol around it.
Not here: how anything is computed.
"""
