"""Exporters for other trainers: one more takes a file with a function like these, and an entry in `exporting`."""
