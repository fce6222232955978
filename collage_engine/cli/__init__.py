"""The command line: a face of the service that computes nothing itself."""
