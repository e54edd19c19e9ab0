"""What holds for every test: hypothesis judges results, never speed, since the machine may be shared."""

from hypothesis import HealthCheck, settings

settings.register_profile("asap", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("asap")
