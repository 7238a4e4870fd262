"""Stores of conversations; one contract suite holds for all of them."""
