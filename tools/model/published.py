"""The published runs that come with ASAP, in a table that `make runs-table` makes from runs/."""

import gzip
import json
from functools import cache

import kb_seed
from tools.errors import DataError, InputError
from tools.model.runs import Run, parse_run

TABLE = "runs/published.jsonl.gz"


@cache
def published_runs() -> list[Run]:
    """All of them, crashed and older ones too. `source` is a key of runs/sources.toml."""
    lines = gzip.decompress(kb_seed.folder(TABLE).read_bytes()).splitlines()
    try:
        return [parse_run(json.loads(line), published=True) for line in lines]
    except (InputError, ValueError) as error:
        raise DataError(f"kb_seed/{TABLE}: {error}") from error
