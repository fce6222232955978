"""From a cover to a built module, in a child process."""
