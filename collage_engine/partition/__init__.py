"""Which sub-graphs each toolchain could run: patterns, rules, combiners, regions. No TVM."""
