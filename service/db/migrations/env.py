"""Run by Alembic: applies the steps in the transaction that service/db/engine.py began."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
