"""Everything outgoing: the one shared HTTP session, the forgery guard, readers of event streams."""
