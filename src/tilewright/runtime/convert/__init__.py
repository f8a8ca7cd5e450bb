"""Models on disk: converted between layouts, or made from a seed."""
