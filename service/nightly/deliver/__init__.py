"""Tells people of a night: signed webhook, Slack and the like, e-mail. Each recipient by itself."""
