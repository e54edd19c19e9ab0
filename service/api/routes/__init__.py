"""One router per resource: an endpoint checks who calls, asks the store or a tool, and says what is so."""
