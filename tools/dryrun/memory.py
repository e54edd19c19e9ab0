"""Memory of one rank: bytes of the storages that are alive, without an allocator's rounding."""

import weakref
from collections.abc import Mapping
from typing import Any, Self

import torch

from tools.dryrun.watching import Arguments, tensors_of


class MemoryRecorder:
    """Now and at most. `fully_shard` empties storages without freeing them: resizing is watched too."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        know, original = self._know, self._resize

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            original(storage, size)
            know(storage)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        for tensor in tensors_of(result):
            self._know(tensor.untyped_storage())

    def restart_peak(self) -> None:
        self.peak_bytes = self.now_bytes

    def _know(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now_bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _forget(self, key: int) -> None:
        self.now_bytes -= self._sizes.pop(key, 0)
