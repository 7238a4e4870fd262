"""Who is calling, told by tokens: JSON Web Tokens and the keys that sign them (reliability.md S6)."""
