"""What the outside can see of a process: logs, metrics, health and traces."""
