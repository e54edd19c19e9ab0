"""Profiler component for torchtitan 0.3 and later."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from torchtitan.tools.profiler import Profiler

from asap_client.upload import ProfileUpload


class AsapProfiler(Profiler):  # type: ignore[misc]  # torchtitan has no types
    """In place of torchtitan's own profiler; memory snapshots are not taken."""

    @dataclass(kw_only=True, slots=True)
    class Config(Profiler.Config):  # type: ignore[misc]
        server: str = "http://127.0.0.1:8000"
        """The `asap serve` that takes the profile."""
        key_file: str = ""
        """A file with the API key: a key in a configuration would be logged."""
        name: str = "torchtitan"
        """Under which it is found again."""

    def __enter__(self) -> Self:
        settings = self._config
        key = Path(settings.key_file).read_text(encoding="utf-8").strip() if settings.key_file else None
        folder = Path(self._base_folder, settings.save_traces_folder)
        self.upload = ProfileUpload(settings.server, key, name=settings.name, folder=folder)
        self.upload.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.upload.finish()

    def step(self) -> None:
        self.upload.step()
