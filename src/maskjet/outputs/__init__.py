"""Sinks of results: JSON lines, tables, data sets, labels, pictures, annotated video and a window."""
