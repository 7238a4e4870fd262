"""Wire formats of messengers, and what turns their messages into runs."""
