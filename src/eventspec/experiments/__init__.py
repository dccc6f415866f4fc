"""Experiments that compare methods honestly: interleaved runs, ratios of sums, controls, ceilings, identity on every sample."""
