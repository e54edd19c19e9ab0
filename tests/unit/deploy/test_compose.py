"""docker-compose.yml, judged without an engine: by the specification, and by what ASAP takes."""

import pytest

from tests.unit.deploy.reading import REPO, check_command, compose_services, unknown_settings


def test_the_specification_takes_it() -> None:
    assert list(compose_services()) == ["api", "worker", "postgres", "chroma", "prometheus", "grafana"]


@pytest.mark.parametrize("name", ["api", "worker"])
def test_asap_takes_the_command_and_the_settings(name: str) -> None:
    service = compose_services()[name]
    check_command(service.command)
    assert "ASAP_DATABASE_URL" in service.environment
    assert unknown_settings(set(service.environment)) == set()


def test_an_unknown_setting_would_be_found() -> None:
    assert unknown_settings({"ASAP_DATABASE_URL", "ASAP_DATABSE"}) == {"ASAP_DATABSE"}


def test_every_file_that_is_mounted_exists() -> None:
    mounts = [str(mount) for service in compose_services().values() for mount in service.volumes or []]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert files
    assert [file for file in files if not (REPO / file).exists()] == []


def test_nothing_but_this_machine_reaches_a_port() -> None:
    ports = [str(port) for service in compose_services().values() for port in service.ports or []]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
