"""The client of an `asap serve`."""

from asap_client.generated.client import Client

__all__ = ["Client"]
