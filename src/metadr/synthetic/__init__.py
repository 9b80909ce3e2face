"""Images the project makes itself, from installed packages alone: no download, the same pixels every time."""
