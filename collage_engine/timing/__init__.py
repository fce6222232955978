"""What is measured apart from whole models: candidates, transitions, and kernels to tune."""
