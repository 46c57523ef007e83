"""Operators: each is a folder with a plain reference beside its fast variants; library.py loads their kernels."""

from dasmil.ops.alibi import alibi_attention, alibi_slopes
from dasmil.ops.das_attention import das_attention
from dasmil.ops.rotary import rotate

__all__ = ["alibi_attention", "alibi_slopes", "das_attention", "rotate"]
