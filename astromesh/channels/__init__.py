"""The messengers: each is one file that knows its wire format; the runtime keeps, orders and repeats."""
