"""What launches, hand-overs, copies and format conversions cost on this machine."""
