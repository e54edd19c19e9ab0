"""ASAP inside training environments: the client of an `asap serve`, profile capture and trainer callbacks.

    from asap_client.capture import capture

    with capture("traces") as profiler:
        for batch in loader:
            train(batch)
            profiler.step()

Depends on httpx only; capture uses the environment's own torch.
"""

__version__ = "0.3.0"
