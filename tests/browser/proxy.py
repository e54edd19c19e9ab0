"""A balancer in front of several servers: every new connection goes to the next of them."""

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from types import TracebackType

PIECE = 65_536


class Proxy:
    def __init__(self, ports: Sequence[int]) -> None:
        self._next, self.met = cycle(ports), Counter(dict.fromkeys(ports, 0))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                browser, _ = self._listening.accept()
            except OSError:  # closed
                return
            port = next(self._next)
            self.met[port] += 1
            server = socket.create_connection(("127.0.0.1", port))
            self._open += [browser, server]
            for ends in ((browser, server), (server, browser)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(PIECE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one side is gone
        for connection in (source, target):
            connection.close()
