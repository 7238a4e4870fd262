"""Knowledge: documents from folders, cut into passages, found again with their source."""
