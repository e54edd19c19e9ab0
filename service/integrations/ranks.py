"""What the ranks of a job tell each other, by torch where there are several."""

from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def of_this_job(cls) -> "Ranks":
        """On gloo: it moves plain data, whichever backend the training uses."""
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            return cls()
        group = distributed.new_group(backend="gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), group)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def told_by_first(self, value: T | None) -> T | None:
        """The first rank's value, at every rank."""
        if self.count == 1:
            return value
        from torch import distributed

        told = [value]
        distributed.broadcast_object_list(told, src=0, group=self.group)
        return told[0]

    def gathered(self, value: T) -> list[T]:
        """Every rank's value, in their order."""
        if self.count == 1:
            return [value]
        from torch import distributed

        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self.group)
        return found
