"""Operators: each is a folder with a plain reference beside its fast variants; library.py loads their kernels."""

from dasmil.ops.das_attention import das_attention

__all__ = ["das_attention"]
