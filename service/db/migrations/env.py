"""Run by Alembic: applies the steps in the transaction that service/db/engine.py began."""

from alembic import context

from service.db.models import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
