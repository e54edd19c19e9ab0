"""An OpenAI-compatible chat endpoint that plays a script: good answers and every way to fail.

    with ScriptedServer(replies.server_error(), replies.answer({"step": "report", ...})) as server:
        LanguageModel(Endpoint(server.base_url, "scripted")).ask(question)
        assert len(server.seen) == 2

A reply is made for each request in order; when the script is over, `then` is played again and again. What an
endpoint cannot do at all is said once: `without={"tools", "json_schema"}` refuses such requests whatever the
script says. `by_question` answers whole sessions. Real sockets, closed with the test.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.integration.llm import replies
from tests.integration.llm.replies import Played, Reply, Seen

CHAT = "/v1/chat/completions"


class ScriptedServer:
    """Use it as a context manager; `seen` holds every request, also the refused ones.

    A fault that nobody met shows nothing: `asked` counts requests by question, `sent` the bytes of bodies,
    and a script that was not played to its end fails the test.
    """

    def __init__(
        self,
        *script: Reply,
        then: Reply | None = None,
        without: Collection[str] = frozenset(),
        streams: bool = True,
    ) -> None:
        self.seen: list[Seen] = []
        self.sent = 0
        self.script, self.without = list(script), without
        self.streams = streams
        self.then = then or replies.failure(500, "the script is over")
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def asked(self) -> Counter[str]:
        return Counter(seen.question for seen in self.seen)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        if kind is None:
            assert not self.script, f"{len(self.script)} replies of the script were never asked for"

    def play(self, seen: Seen) -> Played:
        """The answer to one request; counted, so that threads get different replies."""
        with self._lock:
            self.seen.append(seen)
            if seen.path != CHAT:
                return replies.failure(404, f"there is no {seen.path}")(seen)
            lacking = next((name for name in seen.wants if name in self.without), None)
            if lacking:
                return replies.failure(400, f"{lacking} is not supported by this model")(seen)
            reply = self.script.pop(0) if self.script else self.then
        return reply(seen)

    def count(self, sent: int) -> None:
        with self._lock:
            self.sent += sent

    def wait(self, seconds: float) -> None:
        """Hangs, but not longer than the test."""
        self._closing.wait(seconds)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: two would wait for each other (Nagle)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen = Seen(self.path, dict(self.headers), json.loads(body))
                played = server.play(seen)
                if seen.body.get("stream") and server.streams:
                    played = replies.streamed(played)
                try:
                    self._send(played)
                except OSError:
                    self.close_connection = True  # the client gave up, as it should

            def _send(self, played: Played) -> None:
                server.wait(played.hang_s)
                if played.drops:
                    self.close_connection = True
                    return
                self.send_response(played.status)
                for name, value in {"Content-Type": played.content_type, **played.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(played.body)))
                self.end_headers()
                for place in range(0, len(played.body), played.chunk_bytes):
                    chunk = played.body[place : place + played.chunk_bytes]
                    server.count(len(chunk))  # before: the client may be done with it sooner than this thread
                    self.wfile.write(chunk)
                    self.wfile.flush()
                    server.wait(played.chunk_pause_s)

            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

        return Handler


def by_question(
    answers: Mapping[str, Mapping[str, Any] | Reply], otherwise: Reply | None = None
) -> Callable[[Seen], Played]:
    """For `then=`: what to say to each question by its name, in whichever form the request asks for."""

    def reply(seen: Seen) -> Played:
        found = answers.get(seen.question)
        if found is None:
            return (otherwise or replies.failure(500, f"no answer to {seen.question!r}"))(seen)
        return found(seen) if callable(found) else replies.answer(found)(seen)

    return reply
