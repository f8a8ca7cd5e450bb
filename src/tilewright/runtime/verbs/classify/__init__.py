"""`tilewright classify`: sentences in, labels or logits out."""
