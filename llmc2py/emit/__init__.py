"""From plans to files: a map of file name to text, then one writer that puts it on disk or compares it."""
