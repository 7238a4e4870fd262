"""The seams: what an implementation must offer to be plugged in. Protocols only, no behaviour."""
