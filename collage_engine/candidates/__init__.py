"""The open model with its menu: candidates, their keys and certified bounds."""
