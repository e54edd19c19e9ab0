"""Checkpoint savers for the graph: SQLite in the data folder, or PostgreSQL.

Imports LangGraph, so it is kept apart from runtime.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from graph.state import state_serializer
from service.settings import Settings, make_data_folder

FILE = "checkpoints.db"


@contextmanager
def open_checkpoints(settings: Settings) -> Iterator[BaseCheckpointSaver[Any]]:
    """A saver that several sessions may share; its tables are made if they are missing."""
    if settings.database_url:
        with _postgres(settings.database_url) as saver:
            yield saver
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    file = make_data_folder(settings.data_dir) / FILE
    with SqliteSaver.from_conn_string(str(file)) as saver:
        saver.serde = state_serializer()
        saver.conn.execute("PRAGMA journal_mode=WAL")
        saver.conn.execute("PRAGMA busy_timeout=10000")
        saver.setup()
        yield saver


@contextmanager
def _postgres(url: str) -> Iterator[BaseCheckpointSaver[Any]]:
    """A pool, which replaces connections that broke; the saver itself writes one checkpoint at a time.

    Commits do not wait for the disk: if the server's machine loses power, a session continues from an
    earlier checkpoint. The commit that ends a session waits, and takes all before it along.
    """
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg import Connection
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}

    def leave_unflushed(connection: Connection[Any]) -> None:
        connection.execute("SET synchronous_commit TO off")

    size: dict[str, Any] = {"min_size": 1, "max_size": 8}
    with ConnectionPool(url, **size, kwargs=options, configure=leave_unflushed, open=True) as pool:
        saver = PostgresSaver(pool, serde=state_serializer())
        saver.setup()
        yield saver


class GuardedSaver(BaseCheckpointSaver[Any]):
    """A saver that writes only inside `guard`, which raises if this process may no longer write."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], guard: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._guard = saver, guard

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ANN401 - each saver has its own
        return self._saver.get_next_version(current, channel)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self._guard():
            return self._saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        with self._guard():
            self._saver.put_writes(config, writes, task_id, task_path)
