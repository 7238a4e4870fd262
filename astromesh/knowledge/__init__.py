"""Knowledge: documents are loaded, cut into chunks, embedded, stored and found again with their source."""
