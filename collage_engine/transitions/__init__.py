"""Launches, hand-overs, copies and format conversions are measured on this machine."""
