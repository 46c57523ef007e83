"""From slides to bags: reading, tissue, tiles, stain, features."""
