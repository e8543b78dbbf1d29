"""Tokens of an OpenID Connect provider: its keys, what its tokens say, and the login of the dashboard."""
