"""Profiler component for torchtitan 0.3 and later."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from torchtitan.tools.profiler import Profiler

from asap_client.upload import ProfileUpload


class AsapProfiler(Profiler):  # type: ignore[misc]  # torchtitan has no types
    """Replaces torchtitan's own profiler; takes no memory snapshots."""

    @dataclass(kw_only=True, slots=True)
    class Config(Profiler.Config):  # type: ignore[misc]
        server: str = "http://127.0.0.1:8000"
        """The `asap serve` to upload to."""
        key_file: str = ""
        """File with the API key: a key in the configuration would be logged."""
        name: str = "torchtitan"
        """Name of the trace on the server."""

    def __enter__(self) -> "AsapProfiler":
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
