"""What finds passages: words, vectors, and the fusion of both; shared by semantic memory and knowledge."""
