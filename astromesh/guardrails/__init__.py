"""The built-in rules (document 001, steps 3 and 10); `base` holds their protocol.

`spans` is the base of rules that redact. `filters` has `content_filter` and `topic_filter`, `limits` has
`max_length` and `cost_limit`, `grounding` has `grounded`. `pii_detection` is a module of its own, for which
`pii_formats` and `phone_numbers` find written forms of personal data.
"""
