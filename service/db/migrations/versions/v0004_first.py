"""Revision 0004, where databases of 0.1 and 0.2 are: a new one is made from the tables of the code."""

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: no database is older."""
