"""The former name of `dasmil.wsi.batch`."""

from dasmil.wsi.batch import Reporter, Summary, extract, find_slides, read_mpp_table

__all__ = ["Reporter", "Summary", "extract", "find_slides", "read_mpp_table"]
