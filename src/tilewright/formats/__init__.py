"""Readers and writers of every file the project knows. A leaf: validates before it allocates, knows no model."""
