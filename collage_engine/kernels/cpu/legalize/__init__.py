"""Operators as computations whose constant operands are packed for the schedules."""
