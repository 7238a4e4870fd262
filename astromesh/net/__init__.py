"""Outgoing calls: the shared HTTP session, the request-forgery guard and stream parsers."""
