"""Bags from files and datasets."""
