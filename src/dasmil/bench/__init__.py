"""Side-by-side measurements that print ratios. Absolute times belong to one machine; ratios of one run travel."""
