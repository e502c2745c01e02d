"""Backing files, presence, single flight and eviction: where bytes lie and how readers wait."""
