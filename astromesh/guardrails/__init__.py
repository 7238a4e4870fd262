"""The built-in rules (document 001, steps 3 and 10), one file each: `type` in YAML is the file's name.

`spans` is what redacting rules share; `keywords` and `patterns` find words and RE2 patterns; `pii_email`,
`pii_iban`, `pii_cards` and `pii_phones` find personal data, the last two among the digits of `pii_numbers`.
"""
