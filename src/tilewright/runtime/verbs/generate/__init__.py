"""`tilewright generate`: prompts in, completions out."""
