"""Exporters for other trainers: one more takes a file with a class of `Exporter`, and an entry in `exporting`."""
