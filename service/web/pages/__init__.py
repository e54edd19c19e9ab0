"""One router a page: asks the store or a tool, hands plain data to a template."""
