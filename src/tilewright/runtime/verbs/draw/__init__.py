"""`tilewright draw`: noise in, images out."""
