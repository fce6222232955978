"""Which sub-graphs each toolchain could run: patterns, rules, combiners, blocks. No TVM."""
