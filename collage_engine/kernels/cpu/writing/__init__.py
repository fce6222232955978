"""What the writers of processor kernels share: register tiles, epilogues, transposes, costs."""
