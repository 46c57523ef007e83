"""A local page on which one looks at bags, their instances and what these attend to."""
