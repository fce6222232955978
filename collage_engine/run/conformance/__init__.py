"""The checks that every toolchain has to pass, of this project or of another package."""
