"""Checkpoint savers for the graph: SQLite in the data folder, or PostgreSQL; checkpoints are signed.

Imports LangGraph, so it is kept apart from runtime.py.
"""

import hashlib
import hmac
import os
import secrets
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

import sqlalchemy as sa
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph.state import state_serializer
from service.settings import Settings, make_data_file, make_data_folder
from tools.errors import DataError

RETURN = "__return__"
"""LangGraph's channel for the result of a task, which it does not export."""
FILE, KEY_FILE = "checkpoints.db", "checkpoint.key"
KEY_BYTES = 32
PACKED, PACK_FROM_BYTES = "+zlib", 500


class SignedSerializer(SerializerProtocol):
    """Reads only what this installation wrote: to read a checkpoint is to call classes that it names.

    The signature (HMAC-SHA256) stands before the data and is checked before anything of it is decoded.
    """

    def __init__(self, serializer: SerializerProtocol, key: bytes) -> None:
        self._serializer, self._key = serializer, key

    def dumps_typed(self, obj: object) -> tuple[str, bytes]:
        kind, data = self._serializer.dumps_typed(obj)
        if len(data) > PACK_FROM_BYTES:
            kind, data = kind + PACKED, zlib.compress(data)
        return kind, self._sign(kind, data) + data

    def loads_typed(self, data: tuple[str, bytes]) -> object:
        kind, signed = data[0], bytes(data[1])
        signature, content = signed[:KEY_BYTES], signed[KEY_BYTES:]
        if not hmac.compare_digest(signature, self._sign(kind, content)):
            raise DataError("a checkpoint is not signed with this installation's key; retry the session")
        if kind.endswith(PACKED):
            kind, content = kind.removesuffix(PACKED), zlib.decompress(content)
        return self._serializer.loads_typed((kind, content))

    def _sign(self, kind: str, content: bytes) -> bytes:
        return hmac.new(self._key, f"{kind}\0".encode() + content, hashlib.sha256).digest()


def signing_key(settings: Settings) -> bytes:
    """The secret that is set; else PostgreSQL's address, which replicas share; else a file of our own."""
    if settings.checkpoint_secret is not None:
        secret = settings.checkpoint_secret.get_secret_value().encode()
    elif settings.database_url is not None:
        secret = settings.database_url.encode()
    else:
        path = make_data_folder(settings.data_dir) / KEY_FILE
        if not path.exists():  # made at first use, readable by this user only; whole as soon as it is there
            descriptor, made = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            with suppress(FileExistsError):  # another process was first
                os.link(made, path)
            os.unlink(made)
        secret = path.read_bytes()
    return hmac.new(b"asap-checkpoints", secret, hashlib.sha256).digest()


@contextmanager
def open_checkpoints(settings: Settings) -> Iterator[BaseCheckpointSaver[str]]:
    """A saver that several sessions may share; its tables are made if they are missing."""
    serializer = SignedSerializer(state_serializer(), signing_key(settings))
    if settings.database_url:
        with _open_postgres(settings.database_url, serializer) as saver:
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    file = make_data_file(settings.data_dir / FILE)
    with SqliteSaver.from_conn_string(str(file)) as saver:
        saver.serde = serializer
        saver.conn.execute("PRAGMA journal_mode=WAL")
        # As with PostgreSQL below: a killed process loses nothing, a power cut the last checkpoints.
        saver.conn.execute("PRAGMA synchronous=NORMAL")
        saver.conn.execute("PRAGMA busy_timeout=10000")
        saver.setup()
        yield saver


@contextmanager
def _open_postgres(url: str, serializer: SerializerProtocol) -> Iterator[BaseCheckpointSaver[str]]:
    """A pool, which replaces connections that broke; the saver itself writes one checkpoint at a time.

    Commits do not wait for the disk: if the server's machine loses power, a session continues from an
    earlier checkpoint. The commit that ends a session waits, and takes all before it along.
    """
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg import Connection
    from psycopg.rows import DictRow, dict_row
    from psycopg_pool import ConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}

    def leave_unflushed(connection: Connection[DictRow]) -> None:
        connection.execute("SET synchronous_commit TO off")

    size: dict[str, Any] = {"min_size": 1, "max_size": 4}
    with ConnectionPool(url, **size, kwargs=options, configure=leave_unflushed, open=True) as pool:
        saver = PostgresSaver(pool, serde=serializer)
        saver.setup()
        yield saver


class GuardedSaver(BaseCheckpointSaver[str]):
    """A saver that writes only inside `guard`, which raises if this process may no longer write.

    On PostgreSQL the checkpoint is part of the guard's own transaction; SQLite has it in a file of its own.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[str], guard: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._guard = saver, guard

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._saver.get_next_version(current, channel)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self._guard() as conn:
            return self._inside(conn).put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, object]], task_id: str, task_path: str = ""
    ) -> None:
        """A node's results are left out: it is alone in its step, whose checkpoint follows and has them.

        What a node is given while it runs is kept: the replies of a model.
        """
        if any(channel in WRITES_IDX_MAP or channel == RETURN for channel, _ in writes):
            with self._guard() as conn:
                self._inside(conn).put_writes(config, writes, task_id, task_path)

    def _inside(self, conn: sa.Connection) -> BaseCheckpointSaver[str]:
        if conn.dialect.name == "sqlite":
            return self._saver
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(cast("Any", conn.connection.driver_connection), serde=self.serde)
