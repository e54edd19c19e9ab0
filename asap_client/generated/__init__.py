"""Written by `make client` from the OpenAPI document: edit scripts/make_client.py instead."""
