"""The web console: its pages as static files, and the routes that serve them."""
