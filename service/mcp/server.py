"""The protocol around the tools: on standard input and output, or as streamable HTTP on this machine."""

import inspect
import json
import socket
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic_core import to_json

from service import __version__
from service.mcp.tools import Tools
from service.settings import Settings
from tools.errors import AsapError, InputError

HOST = "127.0.0.1"
PATH = "/mcp"
DIGITS = 4
"""Of every number: more would mean nothing, and an assistant pays for each."""
ARGUMENTS = {"DIR": "folder", "--format": "format"}
"""What the command line calls otherwise."""
INSTRUCTIONS = """\
ASAP predicts and improves how a training job of a large language model is sharded. A scenario holds `model`
(a Hugging Face config.json will do), `cluster` (device, num_devices, devices_per_node), `training` (seq_len,
global_batch_size, precision, framework) and `plan` (tp, pp, cp, ep, dp, zero_stage, micro_batch_size,
recompute, ...). Numbers come from these tools: do not estimate step times yourself. Predictions carry an 80%
interval; tell it along."""


def make_server(settings: Settings, folder: Path) -> MCPServer[Any]:
    """`folder` is the one below which traces may be read."""
    server: MCPServer[Any] = MCPServer("asap", version=__version__, instructions=INSTRUCTIONS)
    harmless = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in Tools(settings, folder).all():
        server.add_tool(_telling(tool), description=inspect.getdoc(tool), annotations=harmless)
    return server


def serve_http(server: MCPServer[Any], port: int, announce: Callable[[str], None]) -> None:
    """On loopback only: there is no key. Pages of other sites are refused by their Host and Origin."""
    app = server.streamable_http_app(
        host=HOST, streamable_http_path=PATH, stateless_http=True, json_response=True
    )
    with _listen(port) as listening:
        announce(f"http://{HOST}:{listening.getsockname()[1]}{PATH}")
        uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise AsapError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from None


def _telling(tool: Callable[..., Any]) -> Callable[..., Any]:
    """What the caller did wrong is told to the model, which can then do it right."""

    @wraps(tool)
    def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - any tool's
        try:
            return _answer(tool(*given, **named))
        except InputError as error:
            field = ARGUMENTS.get(error.field, error.field)
            raise ToolError(str(InputError(field, error.given, error.allowed))) from None
        except AsapError as error:
            raise ToolError(str(error)) from None

    return call


def _answer(data: Any) -> CallToolResult:  # noqa: ANN401 - any tool's
    """The same twice, as the protocol has it: a text for models, without blanks, and data for programs."""
    text = to_json(_rounded(data), fallback=str).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=json.loads(text))


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any plain data
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
