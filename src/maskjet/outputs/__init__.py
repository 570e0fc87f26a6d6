"""Output sinks: JSON lines, tables, data sets, labels, pictures, annotated video and a window."""
