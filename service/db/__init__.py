"""What the service remembers, in SQLite or PostgreSQL: every function takes a connection first.

Not here: the graph's checkpoints (service/checkpoints.py) and the queue's own tables (DBOS).
"""
