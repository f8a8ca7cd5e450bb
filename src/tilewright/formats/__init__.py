"""Readers and writers of every file format of the project. They check sizes before they allocate, and know no model."""
