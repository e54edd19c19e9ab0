"""Who may call: API keys, tokens of an issuer, tenants, scopes, cookies; and the audit log."""
