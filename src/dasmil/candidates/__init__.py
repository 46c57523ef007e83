"""The library of candidates."""
