"""`tilewright convolve`: a volume in, the filtered volume out."""
