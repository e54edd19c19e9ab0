"""docker-compose.yml, judged without an engine: by the specification, and by what ASAP takes."""

import pytest

from tests.unit.deploy.reading import SECRETS, check_command, compose_services, unknown_settings


def test_the_specification_takes_it() -> None:
    assert list(compose_services()) == ["api", "worker", "postgres", "chroma", "prometheus", "grafana"]


@pytest.mark.parametrize("name", ["api", "worker"])
def test_asap_takes_the_command_and_the_settings(name: str) -> None:
    service = compose_services()[name]
    check_command(service.command)
    assert "ASAP_DATABASE_URL" in service.environment
    assert unknown_settings(set(service.environment)) == set()


def test_nothing_but_this_machine_reaches_a_port() -> None:
    ports = [str(port) for service in compose_services().values() for port in service.ports or []]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", ["api", "worker"])
def test_every_secret_is_passed_and_none_is_set(name: str) -> None:
    environment = compose_services()[name].environment
    assert len(SECRETS) > 5
    assert {secret: environment.get(secret) for secret in SECRETS} == {
        secret: f"${{{secret}:-}}" for secret in SECRETS
    }


def test_no_service_has_a_password_of_its_own_and_none_gains_privileges() -> None:
    for name, service in compose_services().items():
        passwords = {key: value for key, value in (service.environment or {}).items() if "PASSWORD" in key}
        assert all(value.startswith(("${", "/run/secrets/")) for value in passwords.values()), passwords
        assert "admin" not in str(passwords)
        assert list(service.security_opt) == ["no-new-privileges:true"], name
        assert list(service.cap_drop) == ["ALL"], name


def test_only_the_api_and_the_workers_reach_the_stores() -> None:
    reached = {name: set(service.networks or {"default"}) for name, service in compose_services().items()}
    assert {name for name, networks in reached.items() if "stores" in networks} == {
        "api", "worker", "postgres", "chroma",
    }  # fmt: skip
    assert reached["postgres"] == reached["chroma"] == {"stores"}
