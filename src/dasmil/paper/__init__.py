"""What belongs to the paper's experiments: printed figures, tables."""
