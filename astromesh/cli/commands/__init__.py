"""What the commands do. Each module is imported when its command is called."""
