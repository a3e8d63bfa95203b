"""What was measured: rows, their medians, tables and plots."""
