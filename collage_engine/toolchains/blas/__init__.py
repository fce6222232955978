"""What every BLAS shares: products and convolutions as products, with what follows them."""
