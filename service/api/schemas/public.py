"""What comes back: a shape of the client's, without what it does not name."""

from pydantic import BaseModel, ConfigDict


class Public(BaseModel):
    """The last base of a shape that the client has: nothing leaves the server by accident."""

    model_config = ConfigDict(extra="ignore", frozen=False)
