"""The steps that make the schema, one revision per file (Alembic). A released revision is never edited."""
