"""The built-in rules (document 001, steps 3 and 10), one file each: `type` in YAML is the file's name.

`spans` is what redacting rules share; `keywords` and `patterns` find words and RE2 patterns; `pii_email`,
`pii_iban` and `pii_numbers` find personal data.
"""
