"""The process itself: what it does first, its signals, its bus errors."""
