"""The seams: what an implementation must offer to be plugged in.

Protocols and records; code only where all implementations share it: functions as tools (`functions`), threads
for what blocks (`threads`), long results (`kept`).
"""
