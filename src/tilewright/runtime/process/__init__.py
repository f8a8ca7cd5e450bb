"""The process itself: its startup, its signals, its bus errors."""
