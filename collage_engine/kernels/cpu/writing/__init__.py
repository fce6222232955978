"""The writers of processor kernels share register tiles, epilogues, transposes and costs."""
