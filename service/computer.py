"""A process that computes: answers one forwarded request after the other, with the service's own application.

Started by service/http/computing.py with a socket and the host that the server listens on.
"""

import asyncio
import gc
import logging
import signal
import sys
import time
from contextlib import closing
from multiprocessing.connection import Connection

from fastapi import FastAPI
from starlette.types import Message

from service.app import create_app, make_app_state
from service.db.engine import open_database
from service.http.auth import CALLER
from service.http.computing import ComputedResponse, ComputingRequest
from service.logs import configure_logs, request_id
from service.sessions.dispatch import session_queue
from service.settings import load_settings

log = logging.getLogger("asap.computing")


async def answer(app: FastAPI, request: ComputingRequest) -> ComputedResponse | None:
    """None after an error that nobody expected."""
    request_id.set(request.request_id)
    begun_s = time.process_time()
    status, headers, body = 500, [], bytearray()
    messages = iter([{"type": "http.request", "body": request.body, "more_body": False}])

    async def receive() -> Message:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        else:
            body.extend(message.get("body", b""))

    try:
        await app({**request.scope, CALLER: request.caller, "state": {}}, receive, send)
    except Exception:
        log.exception("request failed", extra={"path": request.scope["path"]})
        return None
    return ComputedResponse(status, headers, bytes(body), time.process_time() - begun_s)


def main() -> None:
    """Ends with the server, whose end of the socket is closed then; a signal to both is the server's."""
    connection, host = Connection(int(sys.argv[1])), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = load_settings()
    configure_logs(settings)
    with closing(open_database(settings.database)) as database, closing(session_queue(database)) as queue:
        app = create_app(make_app_state(settings, database, queue, host), is_inner=True)
        gc.freeze()
        with asyncio.Runner() as runner:
            while True:
                try:
                    request = connection.recv()
                except (EOFError, OSError):
                    return
                connection.send(runner.run(answer(app, request)))


if __name__ == "__main__":
    main()
