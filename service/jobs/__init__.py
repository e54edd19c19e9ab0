"""Runs jobs: the durable queue (DBOS), workers that lease, take over and hand back, webhooks, cleanup."""
