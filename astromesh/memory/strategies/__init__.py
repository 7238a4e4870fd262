"""Which part of a session a run sees.

A turn is one stored message. A window never starts with an answer whose question is not in it.
"""
