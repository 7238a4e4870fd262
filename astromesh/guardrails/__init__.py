"""The built-in rules, one module for each type (document 001, steps 3 and 10); `base` holds their protocol.

`spans` is the base of rules that redact; `matchers` finds keywords and RE2 patterns; `pii_formats` finds
written forms of personal data.
"""
