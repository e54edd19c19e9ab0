"""How the schema came to be, one step a file (Alembic). A step that was released is never edited."""
