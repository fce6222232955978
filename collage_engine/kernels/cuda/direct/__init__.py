"""Convolutions with few channels a group, directly."""
