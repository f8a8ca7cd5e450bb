"""The process of a command: its startup, its signals, and bus errors (SIGBUS)."""
