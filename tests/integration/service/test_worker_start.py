"""Workers that start together on an empty database, as a deployment does it."""

from pathlib import Path

from tests.integration.service.at_work import opened, settings_for, wait_for
from tests.integration.service.fleet import Fleet


def test_several_workers_may_start_at_once_on_an_empty_postgres(tmp_path: Path, postgres_url: str) -> None:
    fleet = Fleet(tmp_path, 3, postgres_url)
    try:
        with opened(settings_for(tmp_path, postgres_url)) as desk:
            ids = [desk.submit() for _ in range(3)]
            assert [desk.wait(id).state for id in ids] == ["completed"] * 3
            wait_for(lambda: len(desk.living()) == 3)
            assert fleet.stop() == [0, 0, 0]
    finally:
        fleet.end()
