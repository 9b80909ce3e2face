"""Data sets: readers of the publishers' files, what to download, and the decoded cache."""
