"""What belongs to the paper's experiments: recipes, printed figures, tables."""
