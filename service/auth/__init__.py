"""Who calls, for which tenant, and what they may do: API keys and tokens of an OpenID Connect issuer.

Not here: what happens to a request that may not pass (service/api turns our errors into answers).
"""
