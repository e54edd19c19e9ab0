"""A server opens the knowledge base from several threads: its worker, and whoever first looks at a page."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.kb import open_folder


def test_threads_that_open_the_same_folder_at_once_all_get_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: open_folder(tmp_path / "knowledge", None), range(4)))
    try:
        assert len({len(one.entries()) for one in opened}) == 1
    finally:
        for one in opened:
            one.close()
