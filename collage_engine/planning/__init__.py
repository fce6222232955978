"""From the documents to the search problem and from its answers to a placement."""
