"""Runs sessions: the durable queue (DBOS), workers that lease, take over and hand back, and webhooks.

What a session does is the graph's matter, what is remembered of it the store's.
"""
