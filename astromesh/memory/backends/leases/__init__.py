"""Session leases beside the turns they guard, by store."""
