"""What every long job has: progress, a budget of time, and a way to be stopped."""
